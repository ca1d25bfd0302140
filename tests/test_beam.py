"""Beam search over forks, judged by transformers' own."""

import pytest
import torch
from tiny_models import oracle, random_llama
from toy_executor import assert_all_free

from minivllm import LLM
from minivllm.entrypoints.beam import Beam, BeamSearchParams, prune
from minivllm.sampling_params import SamplingParams

EOS = (7, 11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_llama(
        tmp_path_factory.mktemp("beam"), dtype="float64", vocab_size=31, eos_token_id=list(EOS)
    )


def transformers_beams(folder, prompt, num_beams, max_tokens, **options):
    """Ids and scores of the beams, best first."""
    model = oracle(folder, torch.float64)
    found = model.generate(
        torch.tensor([prompt]), num_beams=num_beams, num_return_sequences=num_beams,
        max_new_tokens=max_tokens, do_sample=False, return_dict_in_generate=True,
        output_scores=True, pad_token_id=0, **options,
    )  # fmt: skip
    beams = []
    for ids, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        new = ids[len(prompt) :]
        ends = [i for i, token_id in enumerate(new) if token_id in EOS]
        beams.append((tuple(new[: ends[0] + 1] if ends else new), score))
    return beams


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("num_beams, max_tokens", [(1, 6), (2, 9), (4, 12), (5, 3)])
def test_beams_are_those_of_transformers(
    folder, num_beams, max_tokens, early_stopping, length_penalty
):
    options = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    llm = LLM(folder, dtype="float64", backend="reference", block_size=4, num_blocks=60, debug=True)
    for prompt in ([1, 2, 3], [30, 4, 9, 9, 1, 2, 5, 6]):
        params = BeamSearchParams(num_beams, max_tokens, **options)
        (out,) = llm.beam_search([prompt], params)
        if num_beams == 1:
            (greedy,) = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=max_tokens))
            assert out.outputs[0].token_ids == greedy.outputs[0].token_ids
            continue
        want = transformers_beams(folder, prompt, num_beams, max_tokens, **options)
        assert [o.token_ids for o in out.outputs] == [ids for ids, _ in want]
        for ours, (ids, score) in zip(out.outputs, want, strict=True):
            assert ours.cumulative_logprob / len(ids) ** length_penalty == pytest.approx(
                score, abs=1e-5
            )
        llm.engine.core.scheduler.check()
    assert_all_free(llm.engine.core)


def test_a_common_past_is_kept_once(folder):
    """Sixteen blocks of prompt, four beams: without forks that would be four times as many."""
    llm = LLM(
        folder, dtype="float64", backend="reference", block_size=4, num_blocks=40,
        prefix_cache="none", debug=True,
    )  # fmt: skip
    pool, most = llm.engine.core.scheduler.kv.pool, 0
    step = llm._step

    def watched():
        nonlocal most
        step()
        most = max(most, pool.num_blocks - 1 - pool.num_free)
        llm.engine.core.scheduler.check()

    llm._step = watched
    llm.beam_search([[3] * 64], BeamSearchParams(4, 8, ignore_eos=True))
    assert 17 <= most <= 16 + 2 * 4 * 2 + 1
    assert llm.engine.core.scheduler.stats.num_preemptions == 0


@pytest.mark.parametrize("num_blocks, max_num_seqs", [(8, 8), (60, 2), (8, 1)])
def test_little_memory_or_few_places_change_no_beam(folder, num_blocks, max_num_seqs):
    answers = []
    for blocks, places in ((60, 8), (num_blocks, max_num_seqs)):
        llm = LLM(
            folder, dtype="float64", backend="reference", block_size=4, num_blocks=blocks,
            max_num_seqs=places, debug=True,
        )  # fmt: skip
        (out,) = llm.beam_search([[1, 2, 3, 4, 5]], BeamSearchParams(3, 10))
        answers.append([o.token_ids for o in out.outputs])
    assert answers[0] == answers[1]


def test_others_go_on_beside_a_search(folder):
    llm = LLM(folder, dtype="float64", backend="reference", block_size=4, num_blocks=60)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    (alone,) = llm.generate([[5, 6]], params)
    stream = llm.stream([5, 6], params)
    next(stream)
    llm.beam_search([[1, 2, 3]], BeamSearchParams(3, 5))
    *_, last = stream
    assert last.outputs[0].token_ids == alone.outputs[0].token_ids
    assert_all_free(llm.engine.core)


def test_pruning_by_hand():
    beams = [Beam((1, t), score) for t, score in ((5, -1.0), (7, -2.0), (6, -3.0), (9, -4.0))]
    alive, ended = prune(beams, 2, {7})
    assert [b.token_ids[-1] for b in alive] == [5, 6] and [b.token_ids[-1] for b in ended] == [7]
    alive, ended = prune(beams, 1, {7})  # an end that is not among the best counts for nothing
    assert [b.token_ids[-1] for b in alive] == [5] and ended == []


def test_what_cannot_be_searched_is_refused(folder):
    llm = LLM(folder, num_blocks=60, block_size=4)
    for prompt, params, message in (
        ([], BeamSearchParams(), "empty"),
        ([99], BeamSearchParams(), "outside the vocabulary"),
        ([1] * 230, BeamSearchParams(max_tokens=20), "max_model_len"),
    ):
        with pytest.raises(ValueError, match=message):
            llm.beam_search([prompt], params)
    with pytest.raises(ValueError, match="beam_width must be at least 1"):
        BeamSearchParams(beam_width=0)
    assert not llm.engine.core.has_unfinished_requests
