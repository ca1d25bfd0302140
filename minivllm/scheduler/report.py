"""What one row of a step brought its request, as a message."""

from __future__ import annotations

from ..outputs import EngineCoreOutput, ModelRunnerOutput
from ..request import Request


def report(
    request: Request, new_token_ids: tuple[int, ...], result: ModelRunnerOutput, index: int
) -> EngineCoreOutput:
    """index: the row of the step that was the request's."""
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=new_token_ids,
        logprobs=result.logprobs[index][: len(new_token_ids)] if result.logprobs else (),
        prompt_logprobs=result.prompt_logprobs[index] if result.prompt_logprobs else None,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        error=request.error,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
    )
