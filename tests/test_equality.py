"""The law of company: in float64, on the reference backend, a request says in any company exactly
what it says alone. Arrivals, chunks, memory so small that requests are stopped, aborts, mixed
sampling; what is given up is poisoned, and every invariant is checked after each step."""

import random
from itertools import combinations
from pathlib import Path

import pytest
from tiny_models import MULTI_QUERY, random_llama

from minivllm.config import EngineConfig
from minivllm.engine.llm_engine import LLMEngine
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler.policy import POLICIES

PAIRS = {
    "grouped": {},
    "multi-query": {**MULTI_QUERY, "tie_word_embeddings": True},
}


def make_engine(folder, **options):
    options = {"dtype": "float64", "backend": "reference", "debug": True, **options}
    return LLMEngine.from_config(EngineConfig(model=folder, **options))


def random_params(rng, index):
    return SamplingParams(
        temperature=rng.choice([0, 0, 0.7, 1.5]),
        top_k=rng.choice([0, 0, 1, 7]),
        top_p=rng.choice([1.0, 0.9, 0.3]),
        min_p=rng.choice([0.0, 0.05]),
        n=rng.choice([1, 1, 2]),
        max_tokens=rng.randint(1, 14),
        min_tokens=rng.choice([0, 1]),
        stop_token_ids=rng.sample(range(331), 5),
        logprobs=rng.choice([None, 0, 3]),
        prompt_logprobs=rng.choice([None, None, 0, 2]),
        seed=index,
    )


def answers(report):
    return [(s.token_ids, s.finish_reason, s.stop_reason) for s in report.outputs]


def assert_same_logprobs(one, other):
    """Equal ids; values as far apart as float64 sums in another order can be."""
    if one is None or other is None:
        assert one is other
        return
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        if a is None or b is None:
            assert a is b
            continue
        assert list(a) == list(b)
        for token_id in a:
            assert a[token_id].logprob == pytest.approx(b[token_id].logprob, abs=1e-9)


def alone(folder, prompt, params):
    engine = make_engine(folder, num_blocks=40)
    engine.add_request("alone", prompt, params, every_step=False)
    while engine.has_unfinished_requests:
        reports = engine.step()
    return reports[0]


def run_in_company(engine, rng, todo):
    """Requests arrive at random steps and some are aborted. Returns reports by request id."""
    arrivals = {rid: rng.randint(0, 10) for rid in todo}
    deaths = {rid: arrivals[rid] + rng.randint(0, 8) for rid in todo if rng.random() < 0.2}
    reports, step = {}, 0
    while step <= 10 or engine.has_unfinished_requests:
        for rid, (prompt, params) in todo.items():
            if arrivals[rid] == step:
                engine.add_request(rid, prompt, params, every_step=False)
            if deaths.get(rid) == step:
                engine.abort(rid)
        reports |= {report.request_id: report for report in engine.step()}
        engine.core.scheduler.check()
        step += 1
        assert step < 3000, "this takes for ever"
    return reports


@pytest.mark.parametrize("shape", PAIRS)
@pytest.mark.parametrize("seed", range(16))
def test_any_company_gives_the_solo_answer(tmp_path_factory, shape, seed):
    folder = random_llama(tmp_path_factory.getbasetemp(), dtype="float64", **PAIRS[shape])
    rng = random.Random(f"{shape} {seed}")
    block_size = rng.choice([1, 3, 4, 16])
    todo = {
        str(i): (
            [rng.randrange(331) for _ in range(rng.randint(1, 30))],
            random_params(rng, i),
        )
        for i in range(7)
    }
    engine = make_engine(
        folder,
        block_size=block_size,
        num_blocks=1 + -(-rng.randint(46, 70) // block_size),  # one fits, hardly two
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.randint(1, 40),
    )
    pool = engine.core.scheduler.kv.pool
    reports = run_in_company(engine, rng, todo)
    assert engine.core.scheduler.kv.num_free_blocks == pool.num_blocks - 1
    assert len(reports) >= 3
    for rid, report in reports.items():
        solo = alone(folder, *todo[rid])
        assert answers(report) == answers(solo)
        assert_same_logprobs(report.prompt_logprobs, solo.prompt_logprobs)
        for ours, its in zip(report.outputs, solo.outputs, strict=True):
            assert_same_logprobs(ours.logprobs, its.logprobs)


FEATURES = {
    "prefix cache": ["none", "hash", "radix"],
    "when memory is full": ["recompute", "swap", "reserve"],
    "samples": [1, 4],
    "tokens a step": [5, 17, 64],
    "policy": list(POLICIES),
    "block size": [1, 4, 16],
}


def pairs_of(row):
    """All pairs of (feature, value) that a row has."""
    return set(combinations(row.items(), 2))


def pairwise_rows():
    """Few rows that together have every pair of values of two features: each next row is the
    best of a hundred random ones."""
    rng = random.Random(0)
    todo = set().union(
        *(
            {((a, x), (b, y)) for x in FEATURES[a] for y in FEATURES[b]}
            for a, b in combinations(FEATURES, 2)
        )
    )
    rows = []
    while todo:
        tries = [{k: rng.choice(v) for k, v in FEATURES.items()} for _ in range(100)]
        best = max(tries, key=lambda row: len(pairs_of(row) & todo))
        rows.append(best)
        todo -= pairs_of(best)
    return rows


def run_features(folder, row, seed):
    """One random company under the features of a row, against solo answers."""
    rng = random.Random(seed)
    block_size = row["block size"]
    common = [rng.randrange(331) for _ in range(20)]
    todo = {}
    for i in range(5):
        prompt = common[: rng.randint(0, 20)] + [rng.randrange(331) for _ in range(8)]
        params = SamplingParams(
            temperature=rng.choice([0, 0.8]), n=row["samples"], max_tokens=rng.randint(8, 20),
            seed=i,
        )  # fmt: skip
        todo[str(i)] = (prompt, params)
    engine = make_engine(
        folder, block_size=block_size, num_blocks=1 + -(-64 // block_size),
        max_num_batched_tokens=row["tokens a step"], max_num_seqs=4,
        prefix_cache=row["prefix cache"], policy=row["policy"],
        preemption=row["when memory is full"], num_host_blocks=1 + 64 // block_size,
    )  # fmt: skip
    reports = run_in_company(engine, rng, todo)
    kv = engine.core.scheduler.kv
    assert kv.num_free_blocks == kv.pool.num_blocks - 1, row
    for rid, report in reports.items():
        assert answers(report) == answers(alone(folder, *todo[rid])), row
    return engine.core.scheduler.stats


@pytest.mark.slow
def test_every_pair_of_features_gives_the_solo_answer(tmp_path_factory):
    """And the table of pairs that passed is written, for people to look up."""
    folder = random_llama(tmp_path_factory.getbasetemp(), dtype="float64")
    passed, preemptions, hits = set(), 0, 0
    for seed, row in enumerate(pairwise_rows()):
        stats = run_features(folder, row, seed)
        passed |= pairs_of(row)
        preemptions += stats.num_preemptions
        hits += stats.num_cached_tokens
    assert preemptions > 20 and hits > 100, "these rows meet nothing of what they are about"
    write_table(passed)


def write_table(passed):
    """build/tables/features.md: a row and a column for each value of each feature."""
    values = [(feature, value) for feature in FEATURES for value in FEATURES[feature]]
    lines = ["| | " + " | ".join(f"{f}: {v}" for f, v in values) + " |"]
    lines.append("|---" * (len(values) + 1) + "|")
    for a in values:
        cells = ["" if a[0] == b[0] else "yes" for b in values if a[0] == b[0] or (
            (a, b) in passed or (b, a) in passed)]  # fmt: skip
        assert len(cells) == len(values), f"a pair with {a} was not run"
        lines.append(f"| {a[0]}: {a[1]} | " + " | ".join(cells) + " |")
    folder = Path(__file__).parent.parent / "build" / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_these_companies_do_meet_full_memory(tmp_path):
    """The law above is about preempted requests too: here every one but the first is."""
    folder = random_llama(tmp_path, dtype="float64")
    params = SamplingParams(temperature=0, max_tokens=20, seed=0)
    todo = {str(i): ([i + 1] * 9, params) for i in range(4)}
    engine = make_engine(folder, block_size=4, num_blocks=1 + 13, max_num_batched_tokens=16)
    for rid, (prompt, own) in todo.items():
        engine.add_request(rid, prompt, own, every_step=False)
    reports = {}
    while engine.has_unfinished_requests:
        reports |= {r.request_id: r for r in engine.step()}
        engine.core.scheduler.check()
    preemptions = [reports[rid].metrics.num_preemptions for rid in todo]
    assert preemptions[0] == 0 and sum(preemptions) >= 2, preemptions
    for rid, report in reports.items():
        assert answers(report) == answers(alone(folder, *todo[rid]))
