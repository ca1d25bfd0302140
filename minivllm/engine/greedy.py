"""The oldest engine there is: ask a model for the next token, append it, ask again."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def generate_greedy(
    step: Callable[[list[int]], int],
    prompt_token_ids: Sequence[int],
    max_tokens: int,
    eos_token_ids: Sequence[int] = (),
) -> list[int]:
    """The answer to a prompt, token by token, without the prompt.

    step: the next token id after all the token ids it is given. It remembers nothing between
    calls, so each call gets the whole prompt and everything written so far. The answer ends with
    an id of eos_token_ids (which is part of it) or after max_tokens ids; no step is asked for
    more. Raises ValueError, and asks nothing, if the prompt is empty: nothing comes after nothing.
    """
    if len(prompt_token_ids) == 0:
        raise ValueError("the prompt is empty: give at least one token id")
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(step([*prompt_token_ids, *output]))
        if output[-1] in eos_token_ids:
            break
    return output
