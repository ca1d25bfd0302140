"""The workload of a comparison, and how its times become scores.

Greedy, end-of-sequence ignored; prompts are seeded random token ids, new ones each repeat, so that
no prefix cache helps by accident, while lengths are the same in all repeats.
"""

from __future__ import annotations

import random
import statistics

LOWEST_ID, HIGHEST_ID = 100, 40000

# What each test asks, and the scores that tell its story.
TESTS = {
    "decode": "1 request, 64 tokens in, 128 out",
    "decode256": "1 request, 192 in, 128 out: the same around position 256",
    "prefill": "1 request, 1024 in, 1 out",
    "batch32": "32 requests at once, 128 in and 64 out each",
    "offline": "32 requests at once, 32 to 512 in, 16 to 192 out",
    "unshared": "the same 32, each behind 512 tokens of its own",
    "shared": "the same 32, all behind the same 512 tokens",
}
HEADLINES = {
    "decode": ("decode_tok_s",),
    "decode256": ("decode_tok_s",),
    "prefill": ("prefill_tok_s",),
    "batch32": ("decode32_tok_s", "out_tok_s"),
    "offline": ("out_tok_s", "total_tok_s", "ttft_p50_s"),
    "unshared": ("wall_s", "ttft_mean_s", "out_tok_s"),
    "shared": ("wall_s", "ttft_mean_s", "out_tok_s"),
}
SINGLE = {"decode": (64, 128), "decode256": (192, 128), "prefill": (1024, 1)}


def workload(test: str, repeat: int) -> tuple[list[tuple[list[int], int]], int]:
    """Requests (prompt ids, number of new tokens), and the length of the prefix all share.
    Raises ValueError for a test that does not exist."""
    if test not in TESTS:
        raise ValueError(f"no test {test!r}: {', '.join(TESTS)}")
    shape = random.Random(1234)
    draw = random.Random(f"{test}-{repeat}")

    def ids(count: int) -> list[int]:
        return [draw.randrange(LOWEST_ID, HIGHEST_ID) for _ in range(count)]

    if test in SINGLE:
        num_in, num_out = SINGLE[test]
        return [(ids(num_in), num_out)], 0
    if test == "batch32":
        return [(ids(128), 64) for _ in range(32)], 0
    lengths = [(shape.randint(32, 512), shape.randint(16, 192)) for _ in range(32)]
    if test == "offline":
        return [(ids(num_in), num_out) for num_in, num_out in lengths], 0
    common = ids(512)
    if test == "unshared":
        return [(ids(512) + ids(num_in), num_out) for num_in, num_out in lengths], 0
    return [(common + ids(num_in), num_out) for num_in, num_out in lengths], len(common)


def score(
    test: str, requests: list[tuple[list[int], int]], times: list[list[float]], wall_s: float
) -> dict[str, float]:
    """times[i]: seconds since the start at which request i got each of its new tokens."""
    num_in = sum(len(prompt) for prompt, _ in requests)
    num_out = sum(num_new for _, num_new in requests)
    assert [len(t) for t in times] == [num_new for _, num_new in requests], "tokens are missing"
    ttft = [moments[0] for moments in times]
    scores = {
        "wall_s": wall_s,
        "ttft_mean_s": statistics.mean(ttft),
        "ttft_p50_s": statistics.median(ttft),
    }
    if test == "prefill":
        return {**scores, "prefill_tok_s": num_in / ttft[0]}
    if test in SINGLE:
        return {**scores, "decode_tok_s": (num_out - 1) / (times[0][-1] - ttft[0])}
    scores |= {"out_tok_s": num_out / wall_s, "total_tok_s": (num_in + num_out) / wall_s}
    if test == "batch32":  # from the last first token on, all 32 decode
        late = sum(moment > max(ttft) for moments in times for moment in moments)
        scores["decode32_tok_s"] = late / (max(t[-1] for t in times) - max(ttft))
    return scores
