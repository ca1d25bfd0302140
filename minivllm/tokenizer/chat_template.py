"""A conversation to the token ids a chat model was trained on, by the model's own template.

A template is a program that came with a download: it runs in jinja2's sandbox, where it reaches
nothing but the messages, and whatever goes wrong in it is a ValueError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from .tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool")
PART_SEPARATOR = "\n"  # between the text parts of one message, as vLLM joins them

# transformers marks the assistant's words for training with a block of its own; here it is "yes".
_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool = True,  # end where the assistant's answer begins
    tools: Sequence[Mapping[str, Any]] | None = None,  # JSON schemas of functions
) -> list[int]:
    """The ids of the conversation. A BOS that the template writes is the only one; if it writes
    none and the model's prompts begin with one, it is put there.

    A message has a role and content: a string, or a list of {"type": "text", "text": ...}. Its
    other fields (tool_calls, name, ...) go to the template as they are. Raises ValueError naming
    the message's index and field, or saying what the template says.
    """
    plain = check_messages(messages)
    if tokenizer.chat_template is None:
        raise ValueError("this model has no chat template: use generate with a plain prompt")
    special = {"bos_token": tokenizer.bos_token_id, "eos_token": None}
    if tokenizer.eos_token_ids:
        special["eos_token"] = tokenizer.eos_token_ids[0]
    names = {
        name: tokenizer.token_bytes(token_id).decode("utf-8")
        for name, token_id in special.items()
        if token_id is not None
    }
    text = render_template(
        tokenizer.chat_template,
        messages=plain,
        tools=None if tools is None else list(tools),
        add_generation_prompt=add_generation_prompt,
        **names,
    )
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    if tokenizer.add_bos_token and token_ids[:1] != [tokenizer.bos_token_id]:
        token_ids.insert(0, tokenizer.bos_token_id)
    return token_ids


def check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as dicts whose content is one string. Raises ValueError naming the index and
    the field of the first that is wrong. An assistant that only calls tools needs no content."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ValueError("messages must be a list of at least one message")
    checked = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise ValueError(f'{where} must be a dict with "role" and "content", got {message!r}')
        if message.get("role") not in ROLES:
            roles = ", ".join(ROLES)
            raise ValueError(f"{where}.role must be one of {roles}, got {message.get('role')!r}")
        plain = {name: value for name, value in message.items() if value is not None}
        only_calls = message["role"] == "assistant" and "tool_calls" in plain
        if "content" in plain or not only_calls:
            plain["content"] = _join(message.get("content"), f"{where}.content")
        checked.append(plain)
    return checked


def render_template(template: str, **variables: Any) -> str:
    """The text that a template makes of its variables, with the filters and functions that
    transformers gives to chat templates. Raises ValueError with the template's own message."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(_without_generation(template)).render(variables)
    except Exception as error:  # it is a foreign program: it may fail in any way
        raise ValueError(f"the chat template failed: {error or type(error).__name__}") from error


def _join(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise ValueError(f"{where} must be a string or a list of text parts, got {content!r}")
    texts = []
    for index, part in enumerate(content):
        is_text = isinstance(part, Mapping) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise ValueError(
                f'{where}[{index}] must be {{"type": "text", "text": "..."}}, got {part!r}'
            )
        texts.append(part["text"])
    return PART_SEPARATOR.join(texts)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter escapes <, > and & for HTML; a model was trained on the plain text."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise ValueError(message)


def _without_generation(template: str) -> str:
    return _GENERATION.sub(
        lambda m: f"{{%{m[1]} {'endif' if m[2] else 'if true'} {m[3]}%}}", template
    )
