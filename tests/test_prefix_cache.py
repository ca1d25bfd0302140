"""Prefix caches by hand: what hits, what goes, and what public bug reports tell of."""

import random
import tracemalloc

import pytest
from toy_executor import assert_all_free, make_core, solo

from minivllm.kvcache import hash_cache
from minivllm.kvcache.caches import CACHES
from minivllm.kvcache.hash_cache import HashCache, block_digest, block_key
from minivllm.kvcache.kv_cache_manager import KVCacheManager
from minivllm.kvcache.radix_cache import RadixCache
from minivllm.outputs import EngineCoreRequest
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams

SIZE = 3


def tokens(letters, size=SIZE):
    """A block of tokens for each letter: "AB" gives [650, 651, 652, 660, 661, 662]."""
    return [ord(letter) * 10 + i for letter in letters for i in range(size)]


def idle(cache, *block_ids):
    for block_id in block_ids:
        assert cache.keep(block_id)
    cache.check()


@pytest.fixture(params=["hash", "radix"])
def cache(request):
    return CACHES[request.param](SIZE, record_events=True)


@pytest.mark.parametrize("name", CACHES)
def test_all_caches_are_made_and_asked_alike(name):
    cache = CACHES[name](SIZE)
    assert cache.insert(tokens("AB"), (), [1, 2]) == [1, 2]
    assert cache.match_prefix(tokens("AB"), ()) == ([] if name == "none" else [1, 2])
    assert cache.keep(2) == cache.keep(1) == (name != "none")
    assert cache.num_evictable() == (0 if name == "none" else 2)
    with pytest.raises(ValueError, match="3 blocks to evict"):
        cache.evict(3)
    assert cache.evict(0) == [] and cache.take_events() == ()
    assert sorted(cache.clear()) == ([] if name == "none" else [1, 2])
    assert cache.keep(1) is False
    cache.check()


def test_the_longest_chain_of_full_blocks_is_found(cache):
    assert cache.insert(tokens("ABC"), (), [5, 6, 7]) == [5, 6, 7]
    assert cache.match_prefix(tokens("ABC"), ()) == [5, 6, 7]
    assert cache.match_prefix(tokens("ABCD"), ()) == [5, 6, 7]
    assert cache.match_prefix(tokens("ABC")[:-1], ()) == [5, 6]
    assert cache.match_prefix(tuple(tokens("A")), ()) == [5]
    assert cache.match_prefix(tokens("A")[:-1], ()) == cache.match_prefix([], ()) == []
    cache.check()


def test_a_chain_ends_at_its_first_miss(cache):
    cache.insert(tokens("ABC"), (), [5, 6, 7])
    assert cache.match_prefix(tokens("AXC"), ()) == [5]
    assert cache.match_prefix(tokens("XBC"), ()) == []
    part = tokens("ABC")
    part[4] += 1
    assert cache.match_prefix(part, ()) == [5]


def test_e7_the_same_tokens_after_other_tokens_are_a_miss(cache):
    cache.insert(tokens("ABC"), (), [5, 6, 7])
    assert cache.match_prefix(tokens("BC"), ()) == []
    assert cache.insert(tokens("BC"), (), [8, 9]) == [8, 9]
    assert cache.match_prefix(tokens("BC"), ()) == [8, 9]
    assert cache.match_prefix(tokens("ABC"), ()) == [5, 6, 7]
    cache.check()


def test_e5_blocks_of_equal_keys_are_not_taken_for_each_other(cache, monkeypatch):
    monkeypatch.setattr(hash_cache, "block_key", lambda *content: 0)
    cache.insert(tokens("AB"), (), [1, 2])
    cache.insert(tokens("CB"), (), [3, 4])
    cache.insert(tokens("AB"), ("x",), [5, 6])
    assert cache.match_prefix(tokens("AB"), ()) == [1, 2]
    assert cache.match_prefix(tokens("CB"), ()) == [3, 4]
    assert cache.match_prefix(tokens("AB"), ("x",)) == [5, 6]
    assert cache.match_prefix(tokens("BB"), ()) == cache.match_prefix(tokens("D"), ()) == []
    idle(cache, 2, 1)
    assert cache.evict(2) == [2, 1] and cache.match_prefix(tokens("CB"), ()) == [3, 4]
    cache.check()


def test_e5_tokens_that_python_hashes_alike_are_told_apart(cache):
    assert block_key(None, (-1, 5, 5), ()) == block_key(None, (-2, 5, 5), ())
    cache.insert([-1, 5, 5], (), [1])
    assert cache.match_prefix([-2, 5, 5], ()) == []
    assert cache.insert([-2, 5, 5], (), [2]) == [2]
    assert cache.match_prefix([-1, 5, 5], ()) == [1]


def test_an_early_token_changes_every_later_key():
    def keys(prompt, extra_key=()):
        chain = [None]
        for block in prompt:
            chain.append(block_key(chain[-1], block, extra_key))
        return chain[1:]

    same, edited = [(1, 2), (3, 4), (3, 4)], [(1, 7), (3, 4), (3, 4)]
    assert keys(same) == keys(same) and len(set(keys(same))) == 3
    assert not set(keys(same)) & set(keys(edited))
    assert not set(keys(same)) & set(keys(same, (("tenant", 1),)))


@pytest.mark.parametrize("case", ["e8: adapters", "e11: tenants' salts"])
def test_e8_e11_what_sets_requests_apart_sets_their_blocks_apart(cache, case):
    one, other = (("adapter", 1),), (("adapter", 2),)
    if case.startswith("e11"):
        one, other = (("salt", "a"),), (("salt", "b"),)
    cache.insert(tokens("AB"), one, [1, 2])
    assert cache.match_prefix(tokens("AB"), other) == cache.match_prefix(tokens("AB"), ()) == []
    assert cache.match_prefix(tokens("AB"), one) == [1, 2]
    assert cache.insert(tokens("AB"), other, [3, 4]) == [3, 4]
    assert cache.match_prefix(tokens("AB"), other) == [3, 4]
    cache.check()


def test_only_the_blocks_that_were_named_are_published(cache):
    cache.insert(tokens("ABCD"), (), [1, 2])
    assert cache.match_prefix(tokens("ABCD"), ()) == [1, 2]
    assert cache.insert(tokens("ABCD"), (), []) == []


def test_a_twin_is_told_the_canonical_blocks_and_keeps_what_is_new(cache):
    cache.insert(tokens("AB"), (), [1, 2])
    assert cache.insert(tokens("ABCD"), (), [3, 4, 5]) == [1, 2, 5]
    assert cache.insert(tokens("AXY"), (), [6, 7, 8]) == [1, 7, 8]
    assert cache.match_prefix(tokens("ABC"), ()) == [1, 2, 5]
    assert cache.match_prefix(tokens("AXY"), ()) == [1, 7, 8]
    assert not cache.keep(3) and not cache.keep(4) and not cache.keep(6)
    cache.check()


class Counted(list):
    """A list that counts how many of its elements were read."""

    num_read = 0

    def __getitem__(self, key):
        got = super().__getitem__(key)
        self.num_read += len(got) if isinstance(key, slice) else 1
        return got

    def __iter__(self):
        self.num_read += len(self)
        return super().__iter__()


def test_one_more_block_costs_one_block_whatever_stands_before_it(cache):
    prompt = Counted(range(3000))
    block_ids = list(range(1, 1001))
    cache.insert(prompt, (), block_ids[:999])
    prompt.num_read = 0
    cache.insert(prompt, (), block_ids)
    assert 0 < prompt.num_read <= 3 * SIZE
    assert cache.match_prefix(prompt, ()) == block_ids


def test_e4_an_evicted_block_is_forgotten_and_its_id_may_hold_something_else(cache):
    cache.insert(tokens("AB"), (), [1, 2])
    idle(cache, 2, 1)
    assert cache.evict(2) == [2, 1]
    assert cache.match_prefix(tokens("AB"), ()) == []
    cache.insert(tokens("XY"), (), [1, 2])
    assert cache.match_prefix(tokens("AB"), ()) == cache.match_prefix(tokens("XB"), ())[1:] == []
    assert cache.insert(tokens("AB"), (), [3, 4]) == [3, 4]
    assert cache.match_prefix(tokens("AB"), ()) == [3, 4]
    assert cache.match_prefix(tokens("XY"), ()) == [1, 2]
    cache.check()


def test_the_longest_idle_goes_first_and_never_one_with_a_reader(cache):
    for letter, block_id in (("A", 1), ("B", 2), ("C", 3), ("D", 4)):
        cache.insert(tokens(letter), (), [block_id])
    idle(cache, 3, 1, 2)
    assert cache.num_evictable() == 3 and cache.evict(1) == [3]
    cache.reuse(1)
    idle(cache, 1)
    with pytest.raises(ValueError, match="3 blocks to evict, 2 idle"):
        cache.evict(3)
    assert cache.num_evictable() == 2 and cache.match_prefix(tokens("A"), ()) == [1]
    assert cache.evict(2) == [2, 1] and cache.match_prefix(tokens("D"), ()) == [4]
    cache.check()


def test_a_child_goes_before_its_parent_and_a_shared_parent_last(cache):
    cache.insert(tokens("ABC"), (), [1, 2, 3])
    cache.insert(tokens("ABX"), (), [1, 2, 4])
    idle(cache, 3)
    idle(cache, 4, 2, 1)
    assert cache.evict(4) == [3, 4, 2, 1]
    assert not cache.match_prefix(tokens("A"), ())


def test_looking_is_not_using(cache):
    for letter, block_id in (("A", 1), ("B", 2)):
        cache.insert(tokens(letter), (), [block_id])
        idle(cache, block_id)
    for _ in range(5):
        cache.match_prefix(tokens("A"), ())
    assert cache.evict(1) == [1]


def test_what_was_cleared_while_it_was_read_never_comes_back(cache):
    """Who reads it goes on; what it computes on top of outdated KV is outdated too."""
    cache.insert(tokens("AB"), (), [1, 2])
    cache.insert(tokens("X"), (), [3])
    idle(cache, 2)
    assert sorted(cache.clear()) == [2] and cache.num_evictable() == 0
    assert cache.match_prefix(tokens("AB"), ()) == []
    assert cache.insert(tokens("ABC"), (), [1, 4, 5]) == [1, 4, 5]
    assert cache.match_prefix(tokens("A"), ()) == []
    cache.check()
    assert not cache.keep(5) and not cache.keep(4) and not cache.keep(1)
    assert cache.insert(tokens("AB"), (), [1, 2]) == [1, 2]  # the ids are free for new content
    assert cache.match_prefix(tokens("AB"), ()) == [1, 2]
    assert not cache.keep(3)
    cache.check()


def test_events_name_parents_tokens_and_keys(cache):
    cache.insert(tokens("AB"), ("k",), [4, 9])
    cache.insert(tokens("AC"), ("k",), [4, 6])
    a, b, c = (tuple(tokens(letter)) for letter in "ABC")
    assert cache.take_events() == (
        ("stored", 4, None, a, ("k",)), ("stored", 9, 4, b, ("k",)), ("stored", 6, 4, c, ("k",))
    )  # fmt: skip
    idle(cache, 9)
    cache.evict(1)
    cache.clear()
    assert cache.take_events() == (("removed", 9), ("cleared",))
    assert cache.take_events() == ()


# The tree by hand.


def drawn(node):
    """A tree as letters: {"AB": {"C": {}, "X": {}}}."""
    return {
        "".join(chr(t // 10) for t in child.tokens[::SIZE]): drawn(child)
        for child in node.children.values()
    }


def num_nodes(cache):
    return sum(1 for _ in cache._nodes())


def test_a_node_is_split_where_prompts_part_and_grows_where_they_go_on():
    tree = RadixCache(SIZE)
    tree.insert(tokens("ABCD"), (), [1, 2, 3, 4])
    assert drawn(tree.root) == {"ABCD": {}}
    tree.insert(tokens("ABCDE"), (), [1, 2, 3, 4, 5])
    assert drawn(tree.root) == {"ABCDE": {}}
    tree.insert(tokens("ABX"), (), [1, 2, 6])
    assert drawn(tree.root) == {"AB": {"CDE": {}, "X": {}}}
    tree.insert(tokens("ABCY"), (), [1, 2, 3, 7])
    tree.insert(tokens("Z"), (), [8])
    assert drawn(tree.root) == {"AB": {"C": {"DE": {}, "Y": {}}, "X": {}}, "Z": {}}
    tree.check()
    tree.match_prefix(tokens("AZ"), ())
    tree.match_prefix(tokens("ABC"), ())
    tree.insert(tokens("ABC"), (), [9, 10, 11])
    assert drawn(tree.root) == {"AB": {"C": {"DE": {}, "Y": {}}, "X": {}}, "Z": {}}


def test_lfu_keeps_what_was_taken_up_most_often_and_fifo_what_was_stored_last():
    for eviction, order in (("lru", [1, 3, 2]), ("lfu", [3, 2, 1]), ("fifo", [1, 2, 3])):
        tree = RadixCache(SIZE, eviction=eviction)
        for letter, block_id in (("A", 1), ("B", 2), ("C", 3)):
            tree.insert(tokens(letter), (), [block_id])
            idle(tree, block_id)
        for block_id in (1, 1, 2, 1, 3, 2):
            tree.reuse(block_id)
            idle(tree, block_id)
        if eviction == "lfu":
            tree.reuse(2)
            idle(tree, 2)
            order = [3, 1, 2]  # three uses against three: the longest idle
            tree.check()
        assert tree.evict(3) == order, eviction


def test_an_unknown_eviction_is_refused_by_name():
    with pytest.raises(ValueError, match="eviction 'mru' is none of lru, lfu, fifo"):
        RadixCache(SIZE, eviction="mru")


def test_f1_reading_a_leaf_protects_the_whole_way_to_the_root():
    tree = RadixCache(SIZE)
    tree.insert(tokens("AB"), (), [1, 2])
    tree.insert(tokens("AX"), (), [1, 3])
    idle(tree, 3, 2, 1)
    for block_id in (1, 2):
        tree.reuse(block_id)
    assert tree.num_evictable() == 1 and tree.evict(1) == [3]
    with pytest.raises(ValueError):
        tree.evict(1)
    assert tree.match_prefix(tokens("AB"), ()) == [1, 2]


def test_f4_idle_and_read_blocks_add_up_to_the_tree_through_every_split():
    tree = RadixCache(SIZE)
    tree.insert(tokens("ABCD"), (), [1, 2, 3, 4])
    idle(tree, 4, 3)
    tree.insert(tokens("ABX"), (), [1, 2, 5])
    num_read = 3
    for step, block_id in ((tree.keep, 5), (tree.keep, 2), (tree.keep, 1), (tree.reuse, 1),
                           (tree.reuse, 2), (tree.reuse, 3), (tree.reuse, 4)):  # fmt: skip
        step(block_id)
        num_read += 1 if step == tree.reuse else -1
        assert tree.num_evictable() + num_read == 5
        tree.check()


def test_f5_a_block_is_never_owned_by_two_entries(cache):
    cache.insert(tokens("AB"), (), [1, 2])
    with pytest.raises(AssertionError, match="block 2 is cached with other tokens"):
        cache.insert(tokens("XYZ"), (), [3, 2, 4])
    with pytest.raises(AssertionError, match="block 3 is cached already"):
        cache.insert(tokens("VW"), (), [3, 3])


@pytest.mark.parametrize("n", [1, 5, 16, 17, 31])
def test_f8_whole_blocks_go_whatever_number_is_asked(n):
    for cache in (HashCache(16), RadixCache(16)):
        prompt = list(range(32 * 16))
        cache.insert(prompt, (), list(range(1, 33)))
        idle(cache, *range(32, 0, -1))
        assert cache.evict(n) == list(range(32, 32 - n, -1))
        assert cache.match_prefix(prompt, ()) == list(range(1, 33 - n))
        cache.check()


def test_f10_memory_shrinks_when_a_split_run_is_evicted():
    rng = random.Random(0)
    prompt = [rng.randrange(300, 2**30) for _ in range(1500 * SIZE)]
    tree = RadixCache(SIZE)
    tracemalloc.start()
    tree.insert(prompt, (), list(range(1, 1501)))
    tree.insert([*prompt[: 3 * SIZE], 0, 0, 0], (), [1, 2, 3, 1501])
    full = tracemalloc.get_traced_memory()[0]
    idle(tree, *range(1500, 3, -1))
    tree.evict(1497)
    left = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert tree.match_prefix(prompt, ()) == [1, 2, 3]
    assert full > 60_000 and left < full / 3, (full, left)


def test_f11_thousands_of_suffixes_come_and_go_and_leave_nothing():
    tree = RadixCache(SIZE)
    tree.insert(tokens("SYS"), (), [1, 2, 3])
    for user in range(3000):
        suffix = [user, 0, 0, user, 1, 1]
        own = [4 + user % 7 * 2, 5 + user % 7 * 2]
        assert tree.insert(tokens("SYS") + suffix, (), [1, 2, 3, *own]) == [1, 2, 3, *own]
        assert tree.keep(own[1]) and tree.keep(own[0])
        if user >= 6:
            tree.evict(2)
    assert num_nodes(tree) == 7 and len(tree._queue) <= 12
    tree.evict(12)
    assert drawn(tree.root) == {"SYS": {}} and len(tree._blocks) == 3
    tree.check()


def test_the_queue_of_a_tree_does_not_grow_with_use():
    tree = RadixCache(SIZE)
    tree.insert(tokens("AB"), (), [1, 2])
    idle(tree, 2, 1)
    for _ in range(100):
        for step, block_id in ((tree.reuse, 1), (tree.reuse, 2), (tree.keep, 2), (tree.keep, 1)):
            step(block_id)
    assert len(tree._queue) == 1 and tree.evict(2) == [2, 1]


# Through the manager and the engine.


def request(request_id, prompt, max_tokens=4, **fields):
    params = SamplingParams(temperature=0, max_tokens=max_tokens, seed=0)
    return EngineCoreRequest(str(request_id), tuple(prompt), params, **fields)


def run(core, *requests):
    """Run requests to their end; ids and cached tokens of each, every step checked."""
    for new in requests:
        core.add_request(new)
    ids, num_cached = {}, {}
    while core.has_unfinished_requests:
        for output in core.step():
            ids.setdefault(output.request_id, []).extend(output.new_token_ids)
            num_cached[output.request_id] = output.num_cached_tokens
        core.scheduler.check()
    core.step()
    for new in requests:
        expected, _ = solo(new.prompt_token_ids, new.sampling_params)
        assert ids[new.request_id] == expected
    return num_cached


@pytest.fixture(params=["hash", "radix"])
def name(request):
    return request.param


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("k", [1, 3])
def test_e1_e2_a_prompt_of_full_blocks_recomputes_its_last_one_and_stays_cached(
    name, block_size, k
):
    core = make_core(block_size=block_size, budget=100, prefix_cache=name)
    full = list(range(10, 10 + k * block_size))
    assert run(core, request("first", full)) == {"first": 0}
    assert run(core, request("again", full)) == {"again": (k - 1) * block_size}
    assert run(core, request("longer", [*full, 1])) == {"longer": k * block_size}
    assert run(core, request("half", [*full[:-1], 1])) == {"half": (k - 1) * block_size}
    assert_all_free(core)


def test_e4_blocks_reused_for_other_tokens_are_not_taken_for_the_old_ones(name):
    core = make_core(num_blocks=6, prefix_cache=name)
    prompts = [[letter] * 12 for letter in (1, 2, 3)]
    for i in range(9):
        run(core, request(i, prompts[i % 3]))
    assert_all_free(core)


def test_e8_e11_engines_never_hit_across_adapters_or_tenants(name):
    core = make_core(prefix_cache=name)
    prompt = list(range(12))
    keys = [(), (("adapter", "x"),), (("adapter", "y"),), (("salt", "a"),), (("salt", "b"),)]
    for key in keys:
        assert run(core, request(f"1{key}", prompt, extra_key=key)) == {f"1{key}": 0}
    for key in keys:
        assert run(core, request(f"2{key}", prompt, extra_key=key)) == {f"2{key}": 8}


def test_e13_one_row_hits_and_its_neighbour_does_not(name):
    core = make_core(budget=100, prefix_cache=name)
    run(core, request("warm", range(12)))
    hits = run(
        core,
        request("miss", range(20, 32)),
        request("hit", range(13)),
        request("part", [*range(8), 40, 41, 42, 43, 44]),
    )
    assert hits == {"miss": 0, "hit": 12, "part": 8}


def test_e14_the_budget_pays_only_for_what_is_left_after_the_hit(name):
    core = make_core(budget=6, prefix_cache=name)
    run(core, request("warm", range(12)))
    core.add_request(request("hit", range(14)))
    core.add_request(request("miss", range(20, 30)))
    plan = core.scheduler.schedule()
    assert [(row.request_id, row.start, len(row.token_ids)) for row in plan.rows] == [
        ("hit", 12, 2), ("miss", 0, 4)
    ]  # fmt: skip


def test_f2_twins_read_one_copy_and_their_duplicates_are_free_at_once(name):
    core = make_core(budget=100, prefix_cache=name)
    for i in range(2):
        core.add_request(request(i, range(13), max_tokens=30))
    core.step()
    kv = core.scheduler.kv
    first, second = (kv.tables[str(i)].block_ids for i in range(2))
    assert first[:3] == second[:3] and first[3] != second[3]
    assert kv.pool.num_blocks - 1 - kv.pool.num_free == 5
    run(core)
    assert run(core, request("third", range(13))) == {"third": 12}
    assert_all_free(core)


def test_f2_twins_say_the_same_as_alone_while_one_goes_on(name):
    core = make_core(budget=100, prefix_cache=name)
    run(core, request("a", range(13), max_tokens=2), request("b", range(13), max_tokens=30))
    assert_all_free(core)


def test_f7_a_hit_that_cannot_be_completed_is_given_back(name):
    core = make_core(num_blocks=9, budget=100, prefix_cache=name)
    run(core, request("warm", range(12), max_tokens=1))
    core.add_request(request("long", range(20, 36), max_tokens=16))
    core.step()
    core.add_request(request("waits", range(24), max_tokens=1))
    kv = core.scheduler.kv
    for _ in range(3):
        assert len(kv.cache.match_prefix(list(range(23)), ())) == 3
        core.step()
        core.scheduler.check()
        assert "waits" not in kv.tables and kv.num_free_blocks + len(kv.tables["long"]) == 8
    run(core)
    assert_all_free(core)


@pytest.mark.parametrize("block_size", [1, 4])
def test_a_full_hit_leaves_something_to_compute(name, block_size):
    kv = KVCacheManager(50, block_size, CACHES[name](block_size))
    first = Request(request("first", range(20)))
    kv.attach(first, [])
    kv.allocate_slots(first, 20)
    first.num_computed_tokens = 20
    kv.publish(first)
    for length in range(1, 21):
        hit = kv.get_computed_blocks(Request(request("r", range(length))))
        assert len(hit) == (length - 1) // block_size
    unread = request("r", range(20), reads_prefix_cache=False)
    assert kv.get_computed_blocks(Request(unread)) == []


def test_fewer_tokens_are_computed_for_the_same_words():
    """Rag-like work: 30 requests over three shared beginnings, 40 tokens of 45 each."""
    computed = {}
    for name in CACHES:
        core = make_core(num_blocks=200, budget=64, prefix_cache=name)
        rng = random.Random(1)
        work = [[rng.randrange(50)] * 40 for _ in range(3)]
        jobs = [request(i, work[i % 3] + [rng.randrange(50) for _ in range(5)]) for i in range(30)]
        run(core, *jobs)
        computed[name] = sum(plan.num_tokens for plan in core.executor.plans)
        assert_all_free(core)
    assert computed["hash"] == computed["radix"] < computed["none"] / 2


def test_a_digest_tells_apart_whatever_makes_other_kv():
    parent = block_digest(None, [1, 2], (), "m")
    content = [
        (None, [1, 2], (), "m"), (parent, [1, 2], (), "m"), (None, [2, 1], (), "m"),
        (None, [12], (), "m"), (None, [1], (), "m"), (None, [1, 2], (("salt", "a"),), "m"),
        (None, [1, 2], (("salt", "b"),), "m"), (None, [1, 2], ("salt", "a"), "m"),
        (None, [1, 2], (1,), "m"), (None, [1, 2], ("1",), "m"), (None, [1, 2], (), "m2"),
        (None, [1, 2 + 2**64], (), "m"), (None, [1, -2], (), "m"),
    ]  # fmt: skip
    digests = {block_digest(*each) for each in content}
    assert len(digests) == len(content) and {len(d) for d in digests} == {32}
    assert block_digest(None, (1, 2), (), "m") == parent
