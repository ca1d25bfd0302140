"""Log-probabilities as a user gets them: the right numbers for the right tokens, in chunks, out of
caches, after preemptions, in streams. Judge: transformers' scores in float64."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_models import oracle, random_llama

from minivllm.checkpoint.model_config import read_model_config
from minivllm.config import EngineConfig
from minivllm.engine.core import make_core
from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams

VOCAB = 331


class Bytes:
    """Ids 0 to 255 are bytes, as those that a tokenizer falls back to; each higher one is a word
    that begins with a space."""

    add_bos_token, chat_template, bos_token_id, eos_token_ids = False, None, None, ()
    vocab_size = VOCAB

    def encode(self, text, add_special_tokens=True):
        return list(text.encode())

    def token_bytes(self, token_id):
        return bytes([token_id]) if token_id < 256 else f" w{token_id}".encode()

    def is_special(self, token_id):
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("logprobs"), dtype="float64")


@pytest.fixture(scope="module")
def judge(folder):
    return oracle(folder, torch.float64)


def make_llm(folder, **options):
    options = {"dtype": "float64", "num_blocks": 60, "block_size": 4, "debug": True} | options
    config = EngineConfig(folder, **options)
    return LLM.from_engine(LLMEngine(make_core(config, read_model_config(folder)), Bytes(), VOCAB))


@torch.no_grad()
def scores(judge, ids) -> torch.Tensor:
    """Log-probabilities [tokens, vocab]: row p is what comes after position p."""
    return judge(torch.tensor([ids])).logits[0].log_softmax(-1)


def assert_told_right(found, want: torch.Tensor, own: int, num: int) -> None:
    """found: what a user was told of one position. transformers' angles are float32."""
    order = want.argsort(descending=True).tolist()
    assert list(found) == list(dict.fromkeys([own, *order[:num]]))
    for token_id, told in found.items():
        assert told.logprob == pytest.approx(want[token_id].item(), abs=1e-5)
        assert told.rank == 1 + order.index(token_id)


def assert_all_told_right(judge, output, num: int, num_prompt: int | None) -> None:
    for answer in output.outputs:
        ids = [*output.prompt_token_ids, *answer.token_ids]
        want, start = scores(judge, ids), len(output.prompt_token_ids)
        assert len(answer.logprobs) == len(answer.token_ids)
        for i, (token_id, found) in enumerate(zip(answer.token_ids, answer.logprobs, strict=True)):
            assert_told_right(found, want[start + i - 1], token_id, num)
        if num_prompt is None:
            assert output.prompt_logprobs is None
            continue
        assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == start
        for position in range(1, start):
            found = output.prompt_logprobs[position]
            assert_told_right(found, want[position - 1], ids[position], num_prompt)


def asking(**options):
    return SamplingParams(
        **{"temperature": 1.5, "max_tokens": 6, "logprobs": 3, "seed": 1} | options
    )


def test_d4_a_sampled_token_outside_the_top_is_told_beside_it(folder, judge):
    (output,) = make_llm(folder).generate([[5, 6, 7]], asking(max_tokens=20, logprobs=2))
    assert_all_told_right(judge, output, 2, None)
    outside = [f for f in output.outputs[0].logprobs if len(f) == 3]
    assert outside, "every token was among the likeliest two: this test tests nothing"
    for found in outside:
        own, *top = found.values()
        assert own.rank > 2 and [t.rank for t in top] == [1, 2]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("budget", [3, 7, 64])
def test_logprobs_survive_chunks_and_preemptions(folder, judge, budget, preemption):
    llm = make_llm(
        folder, num_blocks=14, max_num_batched_tokens=budget, preemption=preemption,
        num_host_blocks=20,
    )  # fmt: skip
    rng = random.Random(budget)
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 17))] for _ in range(7)]
    params = [
        asking(seed=i, max_tokens=14, prompt_logprobs=rng.choice([None, 0, 2]), n=1 + i % 2)
        for i in range(7)
    ]
    outputs = llm.generate(prompts, params)
    assert sum(o.metrics.num_preemptions for o in outputs) > 0
    for output, own in zip(outputs, params, strict=True):
        assert_all_told_right(judge, output, 3, own.prompt_logprobs)


@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
def test_d5_a_cached_prompt_is_scored_all_the_same(folder, judge, prefix_cache):
    llm, prompt = make_llm(folder, prefix_cache=prefix_cache), list(range(40, 61))
    (first,) = llm.generate([prompt], asking())
    (again,) = llm.generate([prompt], asking())
    assert again.num_cached_tokens > 0, "nothing was cached: this test tests nothing"
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert_all_told_right(judge, again, 3, None)
    (scored,) = llm.generate([prompt], asking(prompt_logprobs=2))
    assert_all_told_right(judge, scored, 3, 2)


def test_d7_numbers_do_not_depend_on_how_many_are_asked_for_or_on_samples(folder):
    llm = make_llm(folder)
    few, many = (
        llm.generate([[9, 8, 7]], asking(logprobs=num, prompt_logprobs=num))[0] for num in (4, 10)
    )
    assert few.outputs[0].token_ids == many.outputs[0].token_ids
    for a, b in zip(few.outputs[0].logprobs, many.outputs[0].logprobs, strict=True):
        assert a.items() <= b.items()
    for a, b in zip(few.prompt_logprobs[1:], many.prompt_logprobs[1:], strict=True):
        assert a.items() <= b.items()
    (several,) = llm.generate([[9, 8, 7]], asking(n=3))
    assert several.outputs[0].token_ids == few.outputs[0].token_ids
    for a, b in zip(several.outputs[0].logprobs, few.outputs[0].logprobs, strict=True):
        assert a.keys() <= b.keys()
        assert [a[i].logprob for i in a] == pytest.approx([b[i].logprob for i in a], abs=1e-9)


def test_d1_the_bytes_of_scored_tokens_are_the_text(folder):
    """A prompt of characters of one to four bytes, each byte a token of its own."""
    prompt = "né 漢字 👍🏽!"
    (output,) = make_llm(folder).generate(prompt, asking(prompt_logprobs=0, logprobs=0))
    first, *others = output.prompt_logprobs
    assert first is None
    ids = output.prompt_token_ids
    raw = [bytes(f[i].bytes) for i, f in zip(ids[1:], others, strict=True)]
    assert bytes(ids[:1]) + b"".join(raw) == prompt.encode()
    (answer,) = output.outputs
    raw = [bytes(f[i].bytes) for i, f in zip(answer.token_ids, answer.logprobs, strict=True)]
    assert b"".join(raw).decode(errors="replace") == answer.text


def test_d2_a_streams_tokens_stand_where_its_text_is(folder):
    """At every report tokens, log-probabilities and text have come equally far; each token's
    place, counted in bytes over prompt and answer, holds that token's bytes."""
    prompt, llm = "so it was", make_llm(folder)
    params = asking(max_tokens=12, prompt_logprobs=0, logit_bias=dict.fromkeys(range(97, 123), 60))
    reports = list(llm.stream(prompt, params))
    assert len(reports) == 12
    for count, report in enumerate(reports, 1):
        (answer,) = report.outputs
        assert len(answer.token_ids) == len(answer.logprobs) == count
        told = [f[i] for i, f in zip(answer.token_ids, answer.logprobs, strict=True)]
        text, offset = (prompt + answer.text).encode(), len(prompt)
        for one in told:
            assert text[offset:].startswith(bytes(one.bytes)), one
            offset += len(one.bytes)
        assert offset == len(text)
        assert all(report.prompt_logprobs[1:]), "the prompt was not scored before the first token"
    assert "".join(r.outputs[0].new_text for r in reports) == answer.text
