"""PlainExecutor against the torch path and transformers; the whole engine on Python alone."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_equality import answers, random_params, run_in_company
from tiny_models import GROUPED, MULTI_QUERY, oracle, random_llama

from minivllm.checkpoint.model_config import read_model_config
from minivllm.config import EngineConfig
from minivllm.engine.llm_engine import LLMEngine
from minivllm.entrypoints.llm import LLM
from minivllm.executor import plain_sampler
from minivllm.executor.plain import PlainExecutor
from minivllm.executor.plain_model import attention, rms_norm, rotary_angles, silu, softmax
from minivllm.executor.plain_sampler import Asker, candidates, choose, draw, probabilities
from minivllm.executor.plain_weights import decode_floats
from minivllm.outputs import LAST_SAMPLED, NewRequest, Row, SchedulerOutput
from minivllm.philox import uniform
from minivllm.sample.logits_processors import process
from minivllm.sample.rules import SamplerRow, ScoreRules, has_rules
from minivllm.sample.sampler import candidates as torch_candidates
from minivllm.sample.sampler import sample
from minivllm.sampling_params import SamplingParams
from minivllm.tokenizer.bpe_file import save_bpe
from minivllm.tokenizer.bpe_training import train

ROOT = Path(__file__).parent.parent
PLAIN = "executor.plain.PlainExecutor"
VOCAB = 97
SMALL = {"vocab_size": VOCAB, "intermediate_size": 20, "max_position_embeddings": 128}
SHAPES = {
    "grouped": {**GROUPED, **SMALL},
    "multi-query, tied": {**MULTI_QUERY, **SMALL, "tie_word_embeddings": True},
    "biases": {**GROUPED, **SMALL, "attention_bias": True, "mlp_bias": True},
}
PROMPT = [5, 90, 17, 17, 25, 9, 88, 12, 4, 33, 61, 2, 40]
OTHER = [44, 8, 31]
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return random_llama(tmp_path_factory.mktemp("plain"), **SHAPES["grouped"])


def plain_engine(folder, **options):
    options = {"executor": PLAIN, "debug": True, "max_model_len": 100, **options}
    return LLMEngine.from_config(EngineConfig(model=folder, **options))


def prompt_scores(engine, prompt):
    """[positions, vocab]: the log-probabilities of each next token, as floats."""
    params = SamplingParams(max_tokens=0, prompt_logprobs=-1)
    (report,) = LLM.from_engine(engine).generate([prompt], params)
    assert report.outputs[0].error is None
    return [
        [found[token_id].logprob for token_id in range(VOCAB)]
        for found in report.prompt_logprobs[1:]
    ]


def float64(numbers):
    return torch.as_tensor(numbers, dtype=torch.float64)


def assert_near(ours, theirs, bound):
    gap = (float64(ours) - float64(theirs)).abs().max()
    assert gap < bound, f"{gap:.2g} apart"


# The model.


@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_the_torch_paths_once_angles_are_the_same(tmp_path, shape):
    """In float64 within 1e-9, where torch is given our cosines and sines: its own angles are
    rounded to float32, as in training."""
    folder = random_llama(tmp_path, **SHAPES[shape])
    engine = LLMEngine.from_config(EngineConfig(folder, dtype="float64", backend="reference"))
    rotary = engine.core.executor.worker.model.model.rotary
    for position in range(len(PROMPT)):
        angles = float64(rotary_angles(position, read_model_config(folder).head_dim, 10000.0))
        assert_near(rotary.cos[position, : len(angles)], angles.cos(), 2e-6)
        rotary.cos[position] = angles.cos().repeat(2)
        rotary.sin[position] = torch.cat((-angles.sin(), angles.sin()))
    assert_near(prompt_scores(plain_engine(folder), PROMPT), prompt_scores(engine, PROMPT), 1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_scores_are_those_of_transformers_whatever_the_weights_are_stored_in(
    tmp_path, shape, dtype
):
    folder = random_llama(tmp_path, dtype=dtype, **SHAPES[shape])
    with torch.no_grad():
        want = oracle(folder, torch.float64)(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    assert_near(prompt_scores(plain_engine(folder), PROMPT), want[:-1], 1e-5)


def test_scores_are_the_torch_paths_in_float32_too(folder):
    long = [*range(VOCAB)]
    torch_engine = LLMEngine.from_config(EngineConfig(folder, dtype="float32"))
    assert_near(prompt_scores(plain_engine(folder), long), prompt_scores(torch_engine, long), 1e-4)


def test_scores_do_not_depend_on_chunks_or_blocks(folder):
    """Not in one bit."""
    want = prompt_scores(plain_engine(folder), PROMPT)
    for budget, block_size in ((1, 1), (1, 16), (3, 4), (5, 3), (64, 4)):
        engine = plain_engine(folder, max_num_batched_tokens=budget, block_size=block_size)
        assert prompt_scores(engine, PROMPT) == want, (budget, block_size)


def test_generating_scores_each_token_as_reading_it_does(folder):
    llm = LLM.from_engine(plain_engine(folder))
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=2)
    (report,) = llm.generate([PROMPT], params)
    (answer,) = report.outputs
    text = [*PROMPT, *answer.token_ids]
    for position, found in enumerate(prompt_scores(llm.engine, text)[len(PROMPT) - 1 :]):
        own = answer.logprobs[position][answer.token_ids[position]]
        assert own.logprob == max(found) and own.rank == 1
        assert answer.token_ids[position] == found.index(max(found))


def test_the_parts_by_hand():
    assert rms_norm([3.0, 4.0], [1.0, 2.0], 0.0) == pytest.approx([3 / 12.5**0.5, 8 / 12.5**0.5])
    assert softmax([0.0, math.log(3)]) == pytest.approx([0.25, 0.75])
    assert attention([[2.0]], [[0.0], [math.log(3) / 2]], [[1.0], [5.0]]) == pytest.approx([4.0])
    assert silu(0.0) == 0 and silu(-1e4) == 0 and silu(1e4) == 1e4
    assert silu(-2.0) == pytest.approx(-2 / (1 + math.exp(2)))


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_all_16_bit_numbers_are_read_exactly(kind):
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16}[kind]
    numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
    ours = float64(decode_floats(numbers.numpy().tobytes(), kind))
    assert torch.equal(ours.nan_to_num(7e70), numbers.view(dtype).double().nan_to_num(7e70))


# Plans written by hand.


def new(request_id, ids, params=GREEDY, num_prompt=None, **more):
    return NewRequest(request_id, tuple(ids), num_prompt or len(ids), params, **more)


def row(request_id, start, ids, num_to_sample, table=(), at=0, **more):
    return Row(
        request_id, start, tuple(ids), num_to_sample,
        table_start=(at,), table_ids=(tuple(table),), **more,
    )  # fmt: skip


def make_executor(folder, **options):
    config = EngineConfig(folder, block_size=4, executor=PLAIN, **options)
    executor = PlainExecutor(config, read_model_config(folder))
    executor.initialize(20, 6)
    return executor


def run(executor, masks=None, **plan):
    executor.execute_model(SchedulerOutput(1, **plan))
    return executor.sample_tokens(1, masks)


@pytest.fixture
def executor(folder):
    return make_executor(folder)


@pytest.fixture(scope="module")
def greedy(folder):
    """What transformers says next, greedily, num times."""
    judge = oracle(folder, torch.float64)

    @torch.no_grad()
    def answer(prompt, num):
        ids = list(prompt)
        for _ in range(num):
            ids.append(judge(torch.tensor([ids])).logits[0, -1].argmax().item())
        return tuple(ids[len(prompt) :])

    return answer


def test_rows_of_chunks_and_of_single_tokens_share_a_step(executor, greedy):
    a, b = greedy(PROMPT, 3), greedy(OTHER, 2)
    first = run(
        executor,
        new_requests=(new("a", PROMPT),),
        rows=(row("a", 0, PROMPT[:6], 0, (9, 1)),),
    )
    assert first.sampled == ((),) and first.prompt_logprobs == first.errors == ()
    second = run(
        executor,
        new_requests=(new("b", OTHER),),
        rows=(row("b", 0, OTHER, 1, (4,)), row("a", 6, PROMPT[6:], 1, (5, 2), at=2)),
    )
    assert second.sampled == (b[:1], a[:1])
    third = run(
        executor,
        rows=(row("a", 13, (LAST_SAMPLED,), 1, at=4), row("b", 3, b[:1], 1, at=1)),
    )
    assert third.sampled == (a[1:2], b[1:])


def test_blocks_are_moved_in_the_order_that_the_messages_promise(executor, greedy):
    """Out, in, copies, poison, writes: all in one plan, each on what the one before left."""
    want = greedy(PROMPT, 1)
    run(
        executor,
        new_requests=(new("a", PROMPT),),
        rows=(row("a", 0, PROMPT[:12], 0, (1, 2, 3)),),
    )
    result = run(
        executor,
        new_requests=(new("b", PROMPT),),
        preempted_ids=("a",),
        swap_out=((1, 5), (2, 4), (3, 0)),
        swap_in=((5, 2), (4, 3), (0, 1)),  # onto what was swapped out
        copies=((1, 7), (2, 8), (7, 9)),  # the last reads what the first wrote
        freed_blocks=(1, 7, 2),
        rows=(row("b", 12, PROMPT[12:], 1, (8, 3, 9, 2)),),
    )
    assert result.sampled == (want,)


def test_a_copy_is_not_changed_by_what_the_original_gets(executor, greedy):
    want = greedy(PROMPT, 2)
    run(
        executor,
        new_requests=(new("a", PROMPT),),
        rows=(row("a", 0, PROMPT[:11], 0, (1, 2, 3)),),
    )
    result = run(
        executor,
        new_requests=(new("b", [*PROMPT[:11], 1, 1, 1]),),
        copies=((3, 12),),
        rows=(
            row("a", 11, PROMPT[11:], 1, (4,), at=3),
            row("b", 11, (1, 1, 1), 1, (1, 2, 12, 5)),
        ),
    )
    assert result.sampled == (want[:1], greedy([*PROMPT[:11], 1, 1, 1], 1))
    assert run(executor, rows=(row("a", 13, (LAST_SAMPLED,), 1, at=4),)).sampled == (want[1:],)


def test_g2_a_preempted_request_resumes_in_other_blocks(executor, greedy):
    want = greedy(PROMPT, 3)
    run(executor, new_requests=(new("a", PROMPT),), rows=(row("a", 0, PROMPT, 1, (1, 2, 3, 4)),))
    gone = run(executor, preempted_ids=("a",), freed_blocks=(4, 3, 2, 1))
    assert gone.sampled == () and executor.requests == {}
    ids = (*PROMPT, *want[:1])
    again = run(
        executor,
        new_requests=(new("a", ids, num_prompt=len(PROMPT)),),
        rows=(row("a", 0, ids, 1, (8, 2, 6, 4)),),
    )
    assert again.sampled == (want[1:2],)
    assert run(executor, rows=(row("a", 14, (LAST_SAMPLED,), 1, at=4),)).sampled == (want[2:],)


def test_a_read_of_what_nobody_wrote_ends_the_request_and_no_other(executor, greedy):
    result = run(
        executor,
        new_requests=(new("a", PROMPT), new("b", OTHER)),
        rows=(row("a", 12, PROMPT[12:], 1, (1, 2, 3, 4)), row("b", 0, OTHER, 1, (5,))),
    )
    assert result.sampled == ((), greedy(OTHER, 1))
    ((request_id, message),) = result.errors
    assert request_id == "a" and "not numbers" in message


def test_a_read_of_what_was_given_up_changes_the_answer(executor):
    """Poison is finite, so that what reads it goes on, and says something else."""

    def answer(**plan):
        return run(executor, rows=(row("a", 12, PROMPT[12:], 1, at=4),), **plan)

    run(
        executor,
        new_requests=(new("a", PROMPT, SamplingParams(temperature=0, logprobs=0)),),
        rows=(row("a", 0, PROMPT[:12], 0, (1, 2, 3, 4)),),
    )
    before = answer()
    assert executor.requests["a"].token_ids[13:] == list(before.sampled[0])
    executor.requests["a"].token_ids.pop()
    assert answer(freed_blocks=(2,)).logprobs != before.logprobs
    assert executor.kv.layers[0].keys[0][8] == executor.kv.layers[1].values[1][11] == [1e30] * 10


def test_c11_nan_scores_end_one_request(folder, greedy):
    executor = make_executor(folder)
    executor.model.embedding[50] = [math.nan] * len(executor.model.embedding[50])
    asked = SamplingParams(temperature=0.7, seed=1, prompt_logprobs=1)
    result = run(
        executor,
        new_requests=(new("a", [*OTHER, 50]), new("b", OTHER), new("c", [50, *OTHER], asked)),
        rows=(
            row("a", 0, [*OTHER, 50], 1, (1,)),
            row("b", 0, OTHER, 1, (2,)),
            row("c", 0, [50, *OTHER], 1, (3,), wants_prompt_logprobs=True),
        ),
    )
    assert result.sampled == ((), greedy(OTHER, 1), ())
    assert [request_id for request_id, _ in result.errors] == ["a", "c"]
    assert "prompt are not numbers" in result.errors[1][1]


def test_a_request_that_asks_too_much_ends_and_no_other(executor, greedy):
    result = run(
        executor,
        new_requests=(
            new("a", OTHER, SamplingParams(temperature=0, extra_args={"watermark": 1})),
            new("b", OTHER),
            new("c", OTHER, adapter="polite"),
        ),
        rows=tuple(row(r, 0, OTHER, 1, (i,)) for i, r in enumerate("abc", 1)),
    )
    assert result.sampled == ((), greedy(OTHER, 1), ())
    assert "watermark" in dict(result.errors)["a"] and "polite" in dict(result.errors)["c"]


def test_a_grammars_bitmap_is_obeyed(executor, folder):
    allowed = bytes([0, 0b1000, *[0] * 11])
    result = run(
        executor,
        {"a": (allowed,), "b": (bytes(13),)},
        new_requests=(new("a", OTHER), new("b", OTHER)),
        rows=(row("a", 0, OTHER, 1, (1,)), row("b", 0, OTHER, 1, (2,))),
    )
    assert result.sampled == ((11,), ())
    assert result.errors == (("b", "no token is allowed here: every one is masked"),)


# Sampling.


def any_params(rng):
    def ids(num):
        return rng.sample(range(VOCAB), num)

    return SamplingParams(
        temperature=rng.choice([0, 0.01, 0.7, 1.0, 3.0]),
        top_k=rng.choice([0, -1, 1, 5, 200]),
        top_p=rng.choice([1.0, 0.9, 0.3, 1e-6]),
        min_p=rng.choice([0.0, 0.0, 0.02, 1.0]),
        seed=rng.getrandbits(64),
        min_tokens=rng.choice([0, 4]),
        stop_token_ids=ids(rng.choice([0, 8])),
        ignore_eos=rng.random() < 0.5,
        max_tokens=20,
        repetition_penalty=rng.choice([1.0, 1.0, 0.6, 1.4]),
        frequency_penalty=rng.choice([0.0, 0.0, 0.7, -0.5]),
        presence_penalty=rng.choice([0.0, 0.0, 1.1]),
        logit_bias={i: rng.uniform(-9, 9) for i in ids(rng.choice([0, 0, 6]))},
        allowed_token_ids=rng.choice([None, None, ids(30)]),
        bad_words_token_ids=rng.choice([(), [ids(1), ids(2), [3, 4], [4, 3, 5]]]),
        logprobs=rng.choice([0, 3, VOCAB]),
    )


def near_a_border(scores, asker, bound=1e-9):
    """Whether the draw falls so close to a border between two ids that rounding decides."""
    probs = probabilities(plain_sampler.process(scores, asker), asker.params)
    sums = list(accumulate(probs))
    draw = uniform(asker.params.seed, asker.sample_index, len(asker.token_ids))
    return min(abs(draw - s / sums[-1]) for s in sums) < bound


@pytest.mark.parametrize("seed", range(4))
def test_the_same_scores_give_the_token_and_the_logprobs_of_the_torch_sampler(seed):
    rng = random.Random(seed)
    num_other, num_errors = 0, 0
    for _ in range(150):
        params = any_params(rng)
        scores = [rng.gauss(0, 3) for _ in range(VOCAB)]
        if rng.random() < 0.3:
            scores = [float(round(x)) for x in scores]  # many equals
        ids = rng.choices([3, 4, 5, *range(VOCAB)], k=rng.randint(1, 15))
        asker = Asker(params, ids, rng.randint(1, len(ids)), rng.randint(0, 3), (2, 7, VOCAB + 5))
        if rng.random() < 0.2:
            asker = Asker(*(getattr(asker, n) for n in asker.__slots__[:5]), rng.randbytes(13))
        rules = None
        if has_rules(params):
            rules = ScoreRules(
                params, list(ids), asker.num_prompt_tokens,
                vocab_size=VOCAB, eos_token_ids=asker.eos_token_ids,
            )  # fmt: skip
        logits = torch.tensor([scores], dtype=torch.float64)
        rows = [SamplerRow(params, len(ids), asker.sample_index, rules, asker.bitmap)]
        changed = process(logits, rows)[0].tolist()
        assert plain_sampler.process(scores, asker) == pytest.approx(changed, abs=1e-12)
        theirs = sample(logits, rows)
        if theirs.errors:
            with pytest.raises(ValueError, match=theirs.errors[0][:20]):
                choose(scores, asker)
            num_errors += 1
            continue
        ours = choose(scores, asker)
        if ours != theirs.token_ids[0]:
            assert near_a_border(scores, asker)
            num_other += 1
            continue
        found = candidates(scores, ours, params.logprobs)
        (want,) = torch_candidates(logits, torch.tensor([ours]), [params.logprobs])
        assert [(i, rank) for i, _, rank in found] == [(i, rank) for i, _, rank in want]
        assert [x for _, x, _ in found] == pytest.approx([x for _, x, _ in want], abs=1e-12)
    assert num_other <= 1 and num_errors < 30


def test_an_id_of_probability_0_is_never_drawn():
    assert draw([0.0, 0.5, 0.0, 0.5], 0.0) == 1
    assert draw([0.0, 0.5, 0.0, 0.5], 0.5) == 3
    assert draw([0.25, 0.75, 0.0], 1 - 2**-53) == 1


def test_scores_that_are_no_numbers_are_refused():
    asker = Asker(GREEDY, OTHER, 3)
    for scores in ([1.0, math.nan], [math.nan, 1.0], [math.inf, 1.0]):
        with pytest.raises(ValueError, match="not numbers"):
            choose(scores, asker)
    assert choose([-math.inf, -5.0, -5.0], asker) == 1


# The whole engine.


@pytest.mark.parametrize("seed", range(5))
def test_any_company_gives_the_solo_answer(folder, seed):
    """The law of company, exact: tokens and log-probabilities, in every bit."""
    rng = random.Random(f"plain {seed}")
    todo = {}
    for i in range(6):
        params = random_params(rng, i)
        ids = [token_id % VOCAB for token_id in params.stop_token_ids]
        prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 20))]
        todo[str(i)] = (
            prompt,
            SamplingParams(
                **{n: getattr(params, n) for n in params.__slots__} | {"stop_token_ids": ids}
            ),
        )
    block_size = rng.choice([1, 3, 4, 16])
    engine = plain_engine(
        folder, block_size=block_size, num_blocks=1 + -(-50 // block_size), max_model_len=50,
        max_num_seqs=rng.randint(2, 6), max_num_batched_tokens=rng.randint(3, 40),
        prefix_cache=rng.choice(["hash", "radix", "none"]),
        preemption=["recompute", "swap"][seed % 2], num_host_blocks=60,
    )  # fmt: skip
    reports = run_in_company(engine, rng, todo)
    kv = engine.core.scheduler.kv
    assert kv.num_free_blocks == kv.pool.num_blocks - 1 and len(reports) >= 3
    solo = LLM.from_engine(plain_engine(folder, prefix_cache="none"))
    for rid, report in reports.items():
        (alone,) = solo.generate([todo[rid][0]], todo[rid][1])
        assert answers(report) == answers(alone)
        assert [o.logprobs for o in report.outputs] == [o.logprobs for o in alone.outputs]
        assert report.prompt_logprobs == alone.prompt_logprobs


def test_answers_are_the_torch_engines(folder):
    """Greedy, drawn, several samples, and an EOS (2) that is wanted but not before its time."""
    params = [
        SamplingParams(temperature=0, max_tokens=20),
        SamplingParams(temperature=1.2, top_p=0.9, n=3, seed=5, max_tokens=20),
        SamplingParams(temperature=0, logit_bias={2: 50}, min_tokens=3),
        SamplingParams(temperature=0.8, repetition_penalty=1.3, seed=6, max_tokens=20),
    ]
    prompts = [PROMPT, OTHER, [7], [*OTHER, 7]]
    theirs = LLM(folder, dtype="float64", backend="reference").generate(prompts, params)
    ours = LLM(folder, executor=PLAIN, dtype="float32", device="cpu").generate(prompts, params)
    assert [answers(o) for o in ours] == [answers(t) for t in theirs]
    assert len(ours[2].outputs[0].token_ids) == 4 and ours[2].outputs[0].finish_reason == "stop"


WITHOUT_ANYTHING = """
import sys
for name in ("torch", "numpy", "tokenizers", "jinja2", "regex"): sys.modules[name] = None
from dataclasses import replace
from minivllm import LLM, SamplingParams
from minivllm.checkpoint.model_config import read_model_config
from minivllm.config import EngineConfig
from minivllm.engine.core import make_core
from minivllm.engine.llm_engine import LLMEngine
from minivllm.tokenizer.bpe_file import load_bpe

folder = sys.argv[1]
tokenizer = load_bpe(folder)
config = EngineConfig(folder, executor="executor.plain.PlainExecutor", max_model_len=64)
model_config = replace(read_model_config(folder), eos_token_ids=tokenizer.eos_token_ids)
core = make_core(config, model_config)
llm = LLM.from_engine(LLMEngine(core, tokenizer, model_config.vocab_size))
params = SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=24)
outs = llm.generate(["Once upon a time", "The end"], params)
print([(o.outputs[0].text, o.outputs[0].finish_reason) for o in outs])
"""


def test_the_whole_engine_writes_where_there_is_nothing_but_python(tmp_path):
    text = "Once upon a time there was a cat. The cat sat on a mat, and that was the end. " * 3
    tokenizer = train(text, 290, ["<|endoftext|>"], eos_token="<|endoftext|>")
    folder = random_llama(tmp_path, **{**SHAPES["grouped"], "vocab_size": 290})
    save_bpe(tokenizer, folder)
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", WITHOUT_ANYTHING, folder],
        capture_output=True, text=True, encoding="utf-8", cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    params = SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=24)
    here = LLM(folder, dtype="float64", backend="reference", max_model_len=64)
    outs = here.generate(["Once upon a time", "The end"], params)
    assert done.stdout.strip() == repr(
        [(o.outputs[0].text, o.outputs[0].finish_reason) for o in outs]
    )


# What it does not have.


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        {"device": "cuda"},
        {"backend": "reference"},
        {"logits_processors": ("somebodys:Processor",)},
    ],
    ids=str,
)
def test_settings_that_plain_python_does_not_have_are_refused_by_name(folder, options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}=.*PlainExecutor"):
        LLM(folder, executor=PLAIN, **options)


def changed(tmp_path, folder, change):
    """A copy of the folder whose tensors went through `change`."""
    shutil.copytree(folder, tmp_path / "changed")
    file = tmp_path / "changed" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return str(tmp_path / "changed")


NORM = "model.norm.weight"
CHECKPOINTS = {
    "lacks model.norm.weight": lambda t: t.pop(NORM),
    "no place for lm_tail": lambda t: t.update(lm_tail=t[NORM].clone()),
    r"model.norm.weight has shape \[23\]": lambda t: t.update({NORM: t[NORM][:-1].clone()}),
    "model.norm.weight: type I32": lambda t: t.update({NORM: t[NORM].to(torch.int32)}),
}


@pytest.mark.parametrize("complaint", CHECKPOINTS)
def test_a_checkpoint_that_does_not_fit_is_refused_by_tensor(tmp_path, folder, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        LLM(changed(tmp_path, folder, CHECKPOINTS[complaint]), executor=PLAIN)
    assert "model.safetensors" in str(caught.value)


def test_a_model_that_is_more_than_a_plain_llama_is_refused(tmp_path, folder):
    shutil.copytree(folder, tmp_path / "changed")
    file = tmp_path / "changed" / "config.json"
    config = json.loads(file.read_text())
    config["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="RoPE scaling"):
        LLM(str(tmp_path / "changed"), executor=PLAIN)


def test_a_file_is_refused_where_a_folder_is_needed(smollm2):
    with pytest.raises(ValueError, match=r"no folder with a model\.safetensors"):
        LLM(smollm2, executor=PLAIN)


def test_memory_is_counted_as_python_takes_it(folder):
    executor = make_executor(folder, kv_cache_memory_bytes=12_345)
    (spec,) = executor.kv_cache_specs()
    assert spec.bytes_per_token == 2 * 2 * 2 * 10 * 32  # K and V, layers, KV heads, size, bytes
    assert executor.available_memory() == 12_345
    executor.shutdown()
    executor.shutdown()
