"""The worker, told what to do by plans written by hand. Judge: transformers, told the same ids."""

from __future__ import annotations

import math

import pytest
import torch
from by_hand import make_runner
from tiny_models import MULTI_QUERY, oracle, random_llama

from minivllm.checkpoint.model_config import read_model_config
from minivllm.config import EngineConfig
from minivllm.executor.uniproc import UniprocExecutor
from minivllm.outputs import LAST_SAMPLED, NewRequest, Row, SchedulerOutput
from minivllm.sampling_params import SamplingParams
from minivllm.worker import worker
from minivllm.worker.input_batch import RequestState, flatten

GREEDY = SamplingParams(temperature=0)
PROMPT = (5, 300, 17, 17, 250, 9, 88, 120, 4, 33)
OTHER = (44, 8, 310)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("worker"))


@pytest.fixture(scope="module")
def judge(folder):
    return oracle(folder, torch.float64)


@pytest.fixture
def runner(folder):
    return make_runner(folder, torch.float64, num_blocks=20, num_host_blocks=6)


@torch.no_grad()
def scores(judge, ids) -> torch.Tensor:
    return judge(torch.tensor([ids])).logits[0]


def greedy(judge, prompt, num: int) -> tuple[int, ...]:
    ids = list(prompt)
    for _ in range(num):
        ids.append(scores(judge, ids)[-1].argmax().item())
    return tuple(ids[len(prompt) :])


def new(request_id: str, ids, params: SamplingParams = GREEDY, num_prompt: int | None = None):
    return NewRequest(request_id, tuple(ids), num_prompt or len(ids), params)


def row(request_id: str, start: int, ids, num_to_sample: int, table=(), at: int = 0, **more) -> Row:
    return Row(
        request_id, start, tuple(ids), num_to_sample,
        table_start=(at,), table_ids=(tuple(table),), **more,
    )  # fmt: skip


def run(runner, masks=None, **plan):
    """One step."""
    runner.execute(SchedulerOutput(1, **plan))
    return runner.sample(1, masks)


def decode(runner, request_id: str, start: int, num: int, at: int) -> tuple[int, ...]:
    """num steps of one token, into tables that are long enough already."""
    rows = [row(request_id, start + i, (LAST_SAMPLED,), 1, at=at) for i in range(num)]
    return tuple(run(runner, rows=(r,)).sampled[0][0] for r in rows)


def test_a_prompt_in_chunks_and_an_answer_token_by_token(runner, judge):
    table = (3, 11, 7, 2)
    result = run(
        runner, new_requests=(new("a", PROMPT),), rows=(row("a", 0, PROMPT[:4], 0, table[:1]),)
    )
    assert result.sampled == ((),)
    assert run(runner, rows=(row("a", 4, PROMPT[4:7], 0, table[1:2], at=1),)).sampled == ((),)
    result = run(runner, rows=(row("a", 7, PROMPT[7:], 1, table[2:], at=2),))
    assert result.sampled[0] + decode(runner, "a", 10, 5, at=4) == greedy(judge, PROMPT, 6)


def test_rows_of_chunks_and_of_single_tokens_share_a_step(runner, judge):
    a, b = greedy(judge, PROMPT, 3), greedy(judge, OTHER, 2)
    first = run(
        runner, new_requests=(new("a", PROMPT),), rows=(row("a", 0, PROMPT, 1, (9, 1, 5, 2)),)
    )
    assert first.sampled == (a[:1],)
    second = run(
        runner,
        new_requests=(new("b", OTHER),),
        rows=(row("b", 0, OTHER, 1, (4, 3)), row("a", 10, (LAST_SAMPLED,), 1, at=4)),
    )
    assert second.sampled == (b[:1], a[1:2])
    third = run(
        runner,
        rows=(row("a", 11, (LAST_SAMPLED,), 1, at=4), row("b", 3, (LAST_SAMPLED,), 1, at=2)),
    )
    assert third.sampled == (a[2:], b[1:])


def test_the_last_sampled_id_may_also_be_sent(runner, judge):
    want = greedy(judge, OTHER, 3)
    run(runner, new_requests=(new("a", OTHER),), rows=(row("a", 0, OTHER, 1, (4, 3)),))
    sent = run(runner, rows=(row("a", 3, want[:1], 1, at=2),))
    assert sent.sampled + run(runner, rows=(row("a", 4, (LAST_SAMPLED,), 1, at=2),)).sampled == (
        want[1:2],
        want[2:3],
    )


def test_g2_a_preempted_request_resumes_in_other_blocks(runner, judge):
    """Its old blocks are poisoned, and its tokens come in chunks that know no prompt's end."""
    want = greedy(judge, PROMPT, 6)
    run(runner, new_requests=(new("a", PROMPT),), rows=(row("a", 0, PROMPT, 1, (1, 2, 3, 4)),))
    assert decode(runner, "a", 10, 2, at=4) == want[1:3]
    gone = run(runner, preempted_ids=("a",), freed_blocks=(4, 3, 2, 1))
    assert gone.sampled == ()

    ids = (*PROMPT, *want[:3])
    run(
        runner,
        new_requests=(new("a", ids, num_prompt=len(PROMPT)),),
        rows=(row("a", 0, ids[:11], 0, (8, 2, 6)),),
    )
    result = run(runner, rows=(row("a", 11, ids[11:], 1, (4,), at=3),))
    assert result.sampled[0] + decode(runner, "a", 13, 2, at=4) == want[3:]


def test_copies_come_before_writes(runner, judge):
    """b goes on from a copy of a's partly filled block; what it writes does not reach a."""
    want = greedy(judge, PROMPT, 3)
    run(runner, new_requests=(new("a", PROMPT),), rows=(row("a", 0, PROMPT[:9], 0, (1, 2, 3)),))
    result = run(
        runner,
        new_requests=(new("b", PROMPT),),
        copies=((3, 12),),
        rows=(row("b", 9, PROMPT[9:], 1, (1, 2, 12)), row("a", 9, PROMPT[9:], 1, at=3)),
    )
    assert result.sampled == (want[:1], want[:1])
    forced = (LAST_SAMPLED,), (7,)  # b is told another token than it sampled
    result = run(runner, rows=(row("a", 10, forced[0], 1, at=3), row("b", 10, forced[1], 1, at=3)))
    assert result.sampled == (want[1:2], greedy(judge, (*PROMPT, 7), 1))
    kv = runner.kv.memory
    assert torch.equal(kv[:, 3, :, :, :2], kv[:, 12, :, :, :2])  # positions 8 and 9
    assert not torch.equal(kv[:, 3, :, :, 2], kv[:, 12, :, :, 2])


def test_freed_blocks_are_poisoned_before_anything_is_written(runner, judge):
    """A block that one request gives up serves another in the same plan."""
    run(runner, new_requests=(new("a", OTHER),), rows=(row("a", 0, OTHER, 1, (5,)),))
    before = runner.kv.memory.clone()
    result = run(
        runner,
        finished_ids=("a",),
        freed_blocks=(5, 6),
        new_requests=(new("b", OTHER),),
        rows=(row("b", 0, OTHER, 1, (5,)),),
    )
    assert result.sampled == (greedy(judge, OTHER, 1),)
    memory = runner.kv.memory
    assert (memory[:, 6] == 1e30).all()
    others = [b for b in range(20) if b not in (5, 6)]
    torch.testing.assert_close(memory[:, others], before[:, others], equal_nan=True, rtol=0, atol=0)


def test_g17_a_swapped_block_comes_back_bit_for_bit_and_the_answer_goes_on(runner, judge):
    """Its blocks are poisoned while it is away, and it comes back to others."""
    want = greedy(judge, PROMPT, 5)
    run(runner, new_requests=(new("a", PROMPT),), rows=(row("a", 0, PROMPT, 1, (1, 2, 3, 4)),))
    assert decode(runner, "a", 10, 1, at=4) == want[1:2]
    before = runner.kv.memory.clone()
    run(runner, preempted_ids=("a",), swap_out=((3, 0), (1, 4), (2, 5)), freed_blocks=(3, 2, 1, 4))
    assert (runner.kv.memory[:, [1, 2, 3, 4]] == 1e30).all()
    result = run(
        runner,
        new_requests=(new("a", (*PROMPT, *want[:2]), num_prompt=len(PROMPT)),),
        swap_in=((4, 9), (5, 7), (0, 8)),
        rows=(row("a", 11, want[1:2], 1, (9, 7, 8, 1)),),
    )
    kv = runner.kv.memory
    torch.testing.assert_close(kv[:, [9, 7]], before[:, [1, 2]], equal_nan=True, rtol=0, atol=0)
    assert torch.equal(kv[:, 8, :, :, :3], before[:, 3, :, :, :3])  # positions 8 to 10
    assert result.sampled[0] + decode(runner, "a", 12, 2, at=4) == want[2:]


def marked(runner) -> None:
    """Every block and host block holds its own number; host blocks from 100 on."""
    for block_id in range(20):
        runner.kv.memory[:, block_id] = block_id
    for host_id in range(6):
        runner.kv.host[host_id] = 100 + host_id


def marks(runner, *block_ids: int) -> list[float]:
    for block_id in block_ids:
        assert (runner.kv.memory[:, block_id] == runner.kv.memory[0, block_id].flatten()[0]).all()
    return [runner.kv.memory[0, block_id].flatten()[0].item() for block_id in block_ids]


def test_moves_are_made_out_in_copy_poison(runner):
    """Block 5 is swapped out, filled from the host, copied on, and given up, in one plan."""
    marked(runner)
    run(
        runner,
        freed_blocks=(5, 1),
        copies=((5, 6),),
        swap_in=((2, 5), (3, 7)),
        swap_out=((5, 0), (7, 3)),
    )
    assert runner.kv.host[0].unique().tolist() == [5]
    assert marks(runner, 6, 7) == [102, 7]  # host block 3 was written before it was read
    assert marks(runner, 5, 1) == [1e30, 1e30]


def test_copies_are_made_one_after_the_other(runner):
    marked(runner)
    run(runner, copies=((1, 2), (2, 3), (4, 1), (3, 5), (6, 6)))
    assert marks(runner, 1, 2, 3, 4, 5, 6) == [4, 1, 1, 4, 1, 6]


def test_unwritten_memory_is_nan_in_debug_and_the_null_block_stays_so(runner):
    assert runner.kv.memory.isnan().all()
    run(runner, new_requests=(new("a", OTHER),), rows=(row("a", 0, OTHER, 1, (5, 6)),))
    written = ~runner.kv.memory.isnan()
    assert written[:, 5, :, :, :3].all() and written.sum() == written[:, 5, :, :, :3].numel()


def test_b11_plans_without_rows_are_legal(runner):
    assert run(runner).sampled == ()
    run(runner, new_requests=(new("a", OTHER),), rows=(row("a", 0, OTHER, 1, (5,)),))
    result = run(runner, finished_ids=("a",))
    assert result.step == 1 and result.sampled == () and result.errors == ()
    assert not runner.batch.requests


def test_plans_that_break_the_contract_are_caught(runner):
    run(runner, new_requests=(new("a", OTHER),), rows=(row("a", 0, OTHER, 0, (5,)),))
    for bad in (
        {"rows": (row("stranger", 0, OTHER, 1, (5,)),)},
        {"new_requests": (new("a", OTHER),)},
        {"finished_ids": ("stranger",)},
        {"rows": (row("a", 3, (LAST_SAMPLED,), 1, at=1),)},  # nothing was sampled
        {"rows": (row("a", 4, (9,), 1, at=1),)},  # a token is left out
        {"rows": (row("a", 3, (9,), 1, (6,), at=2),)},  # so is a block
        {"connector": ("load",)},
    ):
        with pytest.raises(AssertionError):
            runner.execute(SchedulerOutput(2, **bad))
    with pytest.raises(AssertionError):
        runner.sample(2)


def test_g13_rows_are_laid_out_flat_and_the_first_token_stands_at_0():
    states = [
        RequestState("a", list(range(100, 110)), 10, GREEDY, 0, [7, 2, 9]),
        RequestState("b", [50, 51], 2, GREEDY, 0, [4]),
    ]
    step = flatten((row("a", 5, range(105, 110), 1), row("b", 0, (50, 51), 1)), states, 4, "cpu")
    assert step.token_ids.tolist() == [105, 106, 107, 108, 109, 50, 51]
    assert step.positions.tolist() == [5, 6, 7, 8, 9, 0, 1]
    assert step.metadata.query_start_loc == [0, 5, 7]
    assert step.metadata.seq_lens == [10, 2]
    assert step.metadata.block_table.tolist() == [[7, 2, 9], [4, 0, 0]]
    assert step.metadata.slot_mapping.tolist() == [9, 10, 11, 36, 37, 16, 17]


def test_a_block_in_the_middle_of_a_table_may_change(runner):
    run(runner, new_requests=(new("a", PROMPT),), rows=(row("a", 0, PROMPT, 0, (1, 2, 3, 4)),))
    run(runner, copies=((2, 9), (3, 3)), rows=(row("a", 10, (4,), 0, (9, 3, 4), at=1),))
    assert runner.batch.requests["a"].block_table == [1, 9, 3, 4]


def test_min_tokens_keeps_stop_tokens_away_until_then(runner, judge):
    """The two likeliest ids, in turn EOS and a stop token, wait until 2 tokens were written."""
    best, second, third = scores(judge, OTHER)[-1].topk(3).indices.tolist()
    runner.eos_token_ids = (best,)
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=(second,))
    first = run(
        runner, new_requests=(new("a", OTHER, params),), rows=(row("a", 0, OTHER, 1, (5, 6)),)
    )
    assert first.sampled == ((third,),)
    ids = OTHER + first.sampled[0]
    for position in (4, 5):  # with one token written: not yet; with two: whatever is best
        kept = scores(judge, ids)[-1]
        if position == 4:
            kept[[best, second]] = -math.inf
        result = run(runner, rows=(row("a", position - 1, (LAST_SAMPLED,), 1, at=2),))
        assert result.sampled == ((kept.argmax().item(),),)
        ids += result.sampled[0]

    params = SamplingParams(temperature=0, min_tokens=2, ignore_eos=True)
    free = run(runner, new_requests=(new("b", OTHER, params),), rows=(row("b", 0, OTHER, 1, (7,)),))
    assert free.sampled == ((best,),)


def test_penalties_count_the_tokens_that_stand_and_not_those_that_were_sampled(runner, judge):
    """The worker is told another token than it sampled: only that one is penalised from then on."""
    params = SamplingParams(temperature=0, presence_penalty=2.0, frequency_penalty=2.0)
    (first,), (other,) = greedy(judge, OTHER, 1), (7,)
    run(runner, new_requests=(new("a", OTHER, params),), rows=(row("a", 0, OTHER, 1, (5, 6)),))
    rules = runner.batch.requests["a"].rules
    rules.count_new_tokens()
    assert rules.num_in_output[first] == 1
    run(runner, rows=(row("a", 3, (other,), 1, at=2),))
    assert rules.num_in_output[other] == 1 and rules.num_in_output[first] == 0


def test_c11_a_request_whose_scores_are_nan_ends_alone(runner, judge):
    runner.model.model.embed_tokens.weight[8] = math.nan  # in OTHER, not in PROMPT
    result = run(
        runner,
        new_requests=(new("a", PROMPT), new("b", OTHER)),
        rows=(row("b", 0, OTHER, 1, (4, 5)), row("a", 0, PROMPT, 1, (1, 2, 3))),
    )
    assert result.sampled == ((), greedy(judge, PROMPT, 1))
    ((request_id, message),) = result.errors
    assert request_id == "b" and "nan" in message
    again = run(
        runner, finished_ids=("b",), rows=(row("a", 10, (LAST_SAMPLED,), 1, at=3),)
    )  # fmt: skip
    assert again.sampled == (greedy(judge, PROMPT, 2)[1:],) and not again.errors


def test_masks_are_by_request_and_c10_an_empty_one_ends_it_alone(runner, judge):
    allowed = bytearray(42)
    allowed[200 // 8] |= 1 << (200 % 8)
    masks = {"a": (bytes(allowed),), "b": (bytes(42),)}
    result = run(
        runner,
        masks,
        new_requests=(new("a", OTHER), new("b", OTHER), new("c", OTHER)),
        rows=tuple(row(r, 0, OTHER, 1, (i,)) for i, r in enumerate("abc", 1)),
    )
    assert result.sampled == ((200,), (), greedy(judge, OTHER, 1))
    assert [request_id for request_id, _ in result.errors] == ["b"]


def test_c20_a_seeded_request_samples_the_same_alone_and_in_company(folder):
    params = SamplingParams(temperature=1.0, top_p=0.95, seed=11)
    loud = SamplingParams(temperature=2.0, seed=12, logprobs=3)

    def sampled(company: bool) -> list[int]:
        runner, ids = make_runner(folder, torch.float64, num_blocks=20), []
        for step in range(5):
            start = 3 + step - 1 if step else 0
            tokens = (LAST_SAMPLED,) if step else OTHER
            rows = [row("a", start, tokens, 1, () if step else (1, 2), at=2 if step else 0)]
            if company:
                rows.insert(0, row("b", start, tokens, 1, () if step else (7, 8), at=min(step, 1)))
            new_requests = [new("a", OTHER, params), new("b", OTHER, loud)][: 1 + company]
            plan = {"rows": tuple(rows), "new_requests": tuple(new_requests if not step else ())}
            ids += run(runner, **plan).sampled[-1]
        return ids

    assert sampled(company=True) == sampled(company=False)


@pytest.mark.parametrize("chunks", [(10,), (4, 6), (9, 1), (1, 1, 5, 3)], ids=str)
def test_prompt_logprobs_are_right_in_chunks_too(runner, judge, chunks):
    """Position p's score stands in the row that holds position p - 1."""
    params = SamplingParams(temperature=0, prompt_logprobs=2)
    want = scores(judge, PROMPT).log_softmax(-1)
    found, start = {}, 0
    for num in chunks:
        introduced = (new("a", PROMPT, params), new("b", OTHER)) if start == 0 else ()
        other = row("b", 0, OTHER, 0, (9,)) if start == 0 else row("b", 3, (9,), 0, at=1)
        ids = PROMPT[start : start + num]
        last = start + num == len(PROMPT)
        mine = row(
            "a", start, ids, int(last), (1, 2, 3) if start == 0 else (),
            at=0 if start == 0 else 3, wants_prompt_logprobs=start + 1 < len(PROMPT),
        )  # fmt: skip
        result = run(runner, new_requests=introduced, rows=(other, mine))
        assert not result.prompt_logprobs or result.prompt_logprobs[0] is None
        part = result.prompt_logprobs[1] if result.prompt_logprobs else None
        if part is not None:
            found |= dict(enumerate(part.positions, part.start))
        start += num
        if start < len(PROMPT):
            continue
        assert result.sampled[1] == greedy(judge, PROMPT, 1)
    assert list(found) == list(range(1, len(PROMPT)))
    for position, (own, *top) in found.items():
        row_scores = want[position - 1]
        assert own[0] == PROMPT[position]
        assert own[1] == pytest.approx(row_scores[own[0]].item(), abs=1e-5)
        assert own[2] == 1 + (row_scores > row_scores[own[0]]).sum()
        assert [c[0] for c in top] == row_scores.topk(2).indices.tolist()


def test_c11_a_prompt_whose_scores_are_nan_ends_its_request_alone(runner, judge):
    """Even in a chunk that samples nothing."""
    runner.model.model.embed_tokens.weight[8] = math.nan  # in OTHER, not in PROMPT
    params = SamplingParams(temperature=0, prompt_logprobs=0)
    result = run(
        runner,
        new_requests=(new("a", OTHER, params), new("b", PROMPT, params)),
        rows=(
            row("a", 0, OTHER[:2], 0, (5,), wants_prompt_logprobs=True),
            row("b", 0, PROMPT, 1, (1, 2, 3), wants_prompt_logprobs=True),
        ),
    )
    assert [request_id for request_id, _ in result.errors] == ["a"]
    assert "not numbers" in result.errors[0][1] and result.sampled[1] == greedy(judge, PROMPT, 1)


def test_logprobs_stand_by_row_and_only_where_asked(runner, judge):
    asked = SamplingParams(temperature=0, logprobs=1)
    result = run(
        runner,
        new_requests=(new("a", PROMPT), new("b", OTHER, asked), new("c", PROMPT, asked)),
        rows=(
            row("a", 0, PROMPT, 1, (1, 2, 3)),
            row("b", 0, OTHER, 1, (4,)),
            row("c", 0, PROMPT[:4], 0, (5,)),
        ),
    )
    assert result.prompt_logprobs == ()
    a, ((own, best),), c = result.logprobs
    want = scores(judge, OTHER)[-1].log_softmax(-1)
    assert a == c == () and own == best == (want.argmax().item(), pytest.approx(want.max()), 1)


def test_an_executor_serves_a_folder_of_its_own_accord(tmp_path):
    folder = random_llama(tmp_path, **MULTI_QUERY)
    config = EngineConfig(folder, dtype="float32", block_size=4, kv_cache_memory_bytes=12_345)
    executor = UniprocExecutor(config, read_model_config(folder))
    (spec,) = executor.kv_cache_specs()
    assert spec.bytes_per_token == 2 * 2 * 1 * 6 * 4  # K and V, layers, KV heads, size, bytes
    assert executor.available_memory() == 12_345
    executor.initialize(8, 3)
    assert executor.worker.runner.kv.host.shape[:2] == (3, 2)
    plan = SchedulerOutput(
        7, new_requests=(new("a", OTHER),), rows=(row("a", 0, OTHER, 1, (1, 2)),)
    )
    executor.execute_model(plan)
    result = executor.sample_tokens(7)
    assert result.step == 7 and result.sampled == (greedy(oracle(folder), OTHER, 1),)
    executor.shutdown()
    executor.shutdown()


def test_kv_memory_on_a_cpu_is_a_quarter_of_what_is_free_and_at_most_1_gib(folder, monkeypatch):
    executor = UniprocExecutor(EngineConfig(folder, device="cpu"), read_model_config(folder))
    for free, want in ((1 << 30, 1 << 28), (64 << 30, 1 << 30)):
        monkeypatch.setattr(worker, "free_memory", lambda free=free: free)
        assert executor.available_memory() == want


def test_the_dtype_is_chosen_for_the_device(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for native, want in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(worker, "has_native_bfloat16", lambda native=native: native)
        for stored in ("float32", "float16", "bfloat16", "quantized"):
            assert worker.choose_dtype("auto", cpu, stored) == want
    assert worker.choose_dtype("float16", cpu, "float32") == torch.float16
    assert worker.choose_dtype("auto", cuda, "float16") == torch.float16
    assert worker.choose_dtype("auto", cuda, "quantized") == torch.bfloat16
    with pytest.raises(ValueError, match="float64"):
        worker.choose_dtype("float64", torch.device("mps"), "float32")


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="cuda:99"):
        worker.choose_device("cuda:99")
    assert worker.choose_device("cpu").type == "cpu"
    assert worker.free_memory() > 0
