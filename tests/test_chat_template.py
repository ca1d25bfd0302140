"""Conversations get the ids that transformers gives them, with one BOS; what is wrong in a message
or in a template is said, and a template reaches nothing but its messages."""

from __future__ import annotations

import copy
import random
import re

import pytest
from vocabularies import nasty_texts

from minivllm.tokenizer.chat_template import ROLES, render_chat, render_template
from minivllm.tokenizer.tokenizer import load_tokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "météo",
            "description": "What's <the> weather & why?",
            "parameters": {"type": "object", "properties": {"ville": {"type": "string"}}},
        },
    }
]
CALL = {"type": "function", "function": {"name": "météo", "arguments": {"ville": "Zürich"}}}

TEMPLATES = {
    "bos, trim, loop": """
{{- bos_token }}
{%- for m in messages %}
    {%- if loop.first and m.role == 'system' %}
<<{{ m.content | trim }}>>
    {% else %}
[{{ m['role'] | upper }}] {{ m.content }}{{ eos_token if m.role == 'assistant' }}
    {% endif %}
{%- endfor %}
{% if add_generation_prompt %}[ASSISTANT] {% endif %}""",
    "tools, tojson, namespace": """{% set ns = namespace(calls=0) %}
{% if tools %}{{ tools | tojson(indent=2) }}{{ tools[0] | tojson }}{% endif %}
{% for m in messages %}
{% for c in m.tool_calls or [] %}
{% set ns.calls = ns.calls + 1 %}{{ c.function | tojson }}
{% endfor %}
{{ m.role }}#{{ ns.calls }}: {{ m.content if m.content is defined else '-' }}
{% endfor %}""",
    "generation, break, continue": """
{%- for m in messages %}{% if m.role == 'tool' %}{% continue %}{% endif %}
{%- if loop.index > 5 %}{% break %}{% endif %}
{{ m.role }}: {% generation %}{{ m.content }}|{%- endgeneration -%}
{% endfor %}  {%- generation -%}  end {% endgeneration +%}""",
    "time, default, undefined": """{{ strftime_now('%Y') }}{{ name | default('nobody') }}{{ pad }}
{%- for m in messages[::-1] %}{{ m.name }}{{ m.get('content', '') | length }},{% endfor %}""",
}


@pytest.fixture(scope="module")
def real(smollm2):
    return load_tokenizer(smollm2)


@pytest.fixture(scope="module")
def judge(smollm2_hf):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_hf)


def conversations(count, seed):
    rng = random.Random(seed)
    texts = nasty_texts(200, seed)

    def message(role):
        message = {"role": role, "content": rng.choice(texts)}
        if role == "assistant" and rng.random() < 0.3:
            message |= {"tool_calls": [CALL]}
            if rng.random() < 0.5:
                message["content"] = None
        return message if rng.random() < 0.8 else message | {"name": "Zoë", "tool_call_id": None}

    for _ in range(count):
        roles = rng.choices(ROLES, k=rng.randint(1, 8))
        yield [message(role) for role in roles], rng.random() < 0.5


def with_template(tokenizer, template):
    changed = copy.copy(tokenizer)
    changed.chat_template = template
    return changed


@pytest.mark.slow
def test_conversations_get_the_ids_that_transformers_gives(real, judge):
    for messages, prompt in conversations(200, seed=0):
        messages = [{**m, "content": m["content"] or ""} for m in messages]
        expected = judge.apply_chat_template(
            messages, add_generation_prompt=prompt, return_dict=False
        )
        assert render_chat(real, messages, prompt) == expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_any_template_renders_as_transformers_renders_it(real, judge, name):
    template = TEMPLATES[name]
    ours = with_template(real, template)
    for messages, prompt in conversations(40, seed=1):
        if name.startswith(("bos", "generation")):
            messages = [{**m, "content": m["content"] or ""} for m in messages]
        for tools in (None, TOOLS):
            expected = judge.apply_chat_template(
                messages,
                tools=tools,
                add_generation_prompt=prompt,
                chat_template=template,
                return_dict=False,
            )
            assert render_chat(ours, messages, prompt, tools) == expected


class Letters:
    """Characters are their own ids, but for two special tokens."""

    bos_token_id = 1
    eos_token_ids = (2,)

    def __init__(self, add_bos_token, chat_template):
        self.add_bos_token = add_bos_token
        self.chat_template = chat_template

    def encode(self, text, add_special_tokens=True):
        special = {"<s>": 1, "</s>": 2}
        words = re.findall(r"<s>|</s>|.", text, re.DOTALL)
        ids = [special.get(word) or ord(word) for word in words]
        return [1] * (add_special_tokens and self.add_bos_token) + ids

    def token_bytes(self, token_id):
        return {1: b"<s>", 2: b"</s>"}[token_id]


HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("add_bos_token", [True, False])
def test_h13_a_bos_that_the_template_writes_is_the_only_one(add_bos_token):
    ours = Letters(add_bos_token, "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    assert render_chat(ours, HELLO) == [1, ord("h"), ord("i"), 2]


def test_h14_a_bos_that_the_template_does_not_write_is_put_where_prompts_have_one():
    assert render_chat(Letters(True, "{{ messages[0].content }}"), HELLO) == [1, ord("h"), ord("i")]
    assert render_chat(Letters(False, "{{ messages[0].content }}"), HELLO) == [ord("h"), ord("i")]


def test_n5_text_parts_are_joined_and_every_role_is_taken(real):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    for role in ROLES:
        as_parts = render_chat(real, [{"role": role, "content": parts}])
        assert as_parts == render_chat(real, [{"role": role, "content": "one\ntwo"}])
        assert f"<|im_start|>{role}\none\ntwo<|im_end|>" in real.decode(as_parts, False)
    assert render_chat(real, [{"role": "user", "content": parts[:1]}]) == render_chat(
        real, [{"role": "user", "content": "one"}]
    )


OK = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "at least one message"),
        ("hello", "a list of at least one message"),
        (OK, "a list of at least one message"),
        ([OK, "hello"], r"messages\[1\] must be a dict"),
        ([OK, {"content": "x"}], r"messages\[1\]\.role must be one of .*got None"),
        ([{"role": "wizard", "content": "x"}], r"messages\[0\]\.role .* got 'wizard'"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\]\.role"),
        ([OK, OK, {"role": "user"}], r"messages\[2\]\.content must be a string .* got None"),
        ([{"role": "assistant", "content": None}], r"messages\[0\]\.content .* got None"),
        ([{"role": "tool", "content": 5}], r"messages\[0\]\.content .* got 5"),
        ([{"role": "user", "content": {"text": "x"}}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\]\.content\[0\] must be"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}],
            r"messages\[0\]\.content\[1\] must be .* got {'type': 'image_url'}",
        ),
        ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\]\.content\[0\]"),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
    ],
)
def test_n5_a_wrong_message_is_refused_by_index_and_field(real, messages, error):
    with pytest.raises(ValueError, match=error):
        render_chat(real, messages)


def test_an_assistant_that_only_calls_tools_needs_no_content(real):
    template = "{{ messages[0].content is defined }} {{ messages[0].tool_calls[0].function.name }}"
    messages = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    ids = render_chat(with_template(real, template), messages)
    assert real.decode(ids) == "False météo"


def test_a_model_without_a_template_says_so(real):
    with pytest.raises(ValueError, match="this model has no chat template"):
        render_chat(with_template(real, None), HELLO)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ raise_exception('roles must take turns') }}", "roles must take turns"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages | nosuchfilter }}", "nosuchfilter"),
        ("{{ messages[0].content + 5 }}", "str"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_template_that_fails_says_why(template, error):
    with pytest.raises(ValueError, match=f"the chat template failed: .*{error}"):
        render_template(template, messages=HELLO)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ (''|attr('__class__')).mro() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ self.__init__.__globals__ }}",
        "{% for m in messages %}{{ m.update({'role': 'x'}) }}{% endfor %}",
        "{{ messages.append(1) }}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_reaches_nothing_but_its_messages(template):
    messages = [dict(OK)]
    with pytest.raises(ValueError, match="the chat template failed"):
        render_template(template, messages=messages)
    assert messages == [OK]
