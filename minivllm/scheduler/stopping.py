"""Whether the last token of a request ends it."""

from __future__ import annotations

from collections.abc import Set

from ..request import Request


def stop_at_last(
    request: Request, eos_token_ids: Set[int], max_model_len: int
) -> tuple[str, int | None] | None:
    """Finish reason and stop reason if the last token ends the request, else None.

    A token that stops counts as part of the answer. Before min_tokens none stops; the last place
    of max_tokens, or of the model, always ends with "length".
    """
    params, last = request.sampling_params, request.token_ids[-1]
    num_tokens = len(request.token_ids)
    num_output_tokens = num_tokens - request.num_prompt_tokens
    if num_output_tokens >= params.min_tokens:
        if last in eos_token_ids and not params.ignore_eos:
            return "stop", None
        if last in params.stop_token_ids:
            return "stop", last
    if num_output_tokens == params.max_tokens or num_tokens >= max_model_len:
        return "length", None
    return None
