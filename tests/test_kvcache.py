"""Blocks: who owns which, how tables grow, where a position lives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.kvcache.block_pool import BlockPool
from minivllm.kvcache.block_table import BlockTable, blocks_needed, slot_mapping
from minivllm.kvcache.kv_cache_manager import KVCacheManager
from minivllm.kvcache.prefix_cache import NoCache
from minivllm.kvcache.spec import KVCacheSpec
from minivllm.outputs import EngineCoreRequest
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams


def request(name="r", num_tokens=10):
    return Request(EngineCoreRequest(name, tuple(range(num_tokens)), SamplingParams()))


def test_a_pool_hands_out_distinct_blocks_from_the_left_with_one_reader_each():
    pool = BlockPool(6)
    assert pool.allocate(2) == [1, 2] and pool.allocate(1) == [3]
    assert pool.ref_cnt == [0, 1, 1, 1, 0, 0]
    pool.check()


def test_a_pool_hands_out_its_very_last_block_and_never_the_null_block():
    pool = BlockPool(4)
    assert sorted(pool.allocate(3)) == [1, 2, 3]
    with pytest.raises(ValueError, match="1 blocks wanted, 0 free"):
        pool.allocate(1)


def test_a_pool_takes_nothing_when_it_is_short():
    pool = BlockPool(4)
    pool.allocate(1)
    with pytest.raises(ValueError):
        pool.allocate(3)
    assert pool.num_free == 2 and pool.allocate(2) == [2, 3]


def test_a_block_returns_when_its_last_reader_leaves():
    pool = BlockPool(4)
    ids = pool.allocate(2)
    pool.share([ids[0]])
    pool.release(ids)
    assert pool.num_free == 2 and pool.ref_cnt[ids[0]] == 1
    pool.check()
    pool.release([ids[0]])
    assert pool.num_free == 3 and pool.given_up == [ids[1], ids[0]]
    pool.check()


def test_a_block_released_twice_is_loud():
    pool = BlockPool(4)
    ids = pool.allocate(1)
    pool.release(ids)
    with pytest.raises(AssertionError, match="without a reader"):
        pool.release(ids)


def test_the_longest_idle_block_is_reused_first_and_a_tail_before_its_head():
    pool = BlockPool(6)
    first, second = pool.allocate(2), pool.allocate(3)
    pool.release(second)
    pool.release(first)
    assert pool.allocate(5) == second[::-1] + first[::-1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=60))
@settings(max_examples=200)
def test_no_block_is_lost_or_doubled_in_any_history(history):
    """Random allocate, share and release, against a plain count of readers."""
    pool, readers = BlockPool(8), {}
    for kind, n in history:
        if kind <= 1:
            if n > 7 - len(readers):
                with pytest.raises(ValueError):
                    pool.allocate(n)
            else:
                new = pool.allocate(n)
                assert len(set(new)) == n and not set(new) & readers.keys() and 0 not in new
                readers |= dict.fromkeys(new, 1)
        elif readers:
            block_id = sorted(readers)[n % len(readers)]
            if kind == 2:
                pool.share([block_id])
                readers[block_id] += 1
            else:
                pool.release([block_id])
                readers[block_id] -= 1
                if readers[block_id] == 0:
                    del readers[block_id]
        pool.check()
        assert pool.num_free == 7 - len(readers)
        assert {b: c for b, c in enumerate(pool.ref_cnt) if c} == readers


def test_positions_map_to_slots_through_the_table():
    assert slot_mapping([7, 2, 9], 5, 6, 4) == [9, 10, 11, 36, 37, 38]
    with pytest.raises(IndexError):
        slot_mapping([7], 3, 2, 4)


@given(st.data())
def test_slots_are_those_of_a_table_written_out_token_by_token(data):
    block_size = data.draw(st.integers(1, 7))
    table = data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=6, unique=True))
    every = [b * block_size + offset for b in table for offset in range(block_size)]
    start = data.draw(st.integers(0, len(every)))
    num = data.draw(st.integers(0, len(every) - start))
    assert slot_mapping(table, start, num, block_size) == every[start : start + num]


def test_blocks_needed_is_what_the_tokens_fill_less_what_is_owned():
    for block_size in (1, 3, 16):
        for num_tokens in range(70):
            filled = len({position // block_size for position in range(num_tokens)})
            for owned in range(8):
                assert blocks_needed(owned, num_tokens, block_size) == max(0, filled - owned)


def test_a_table_tells_the_worker_each_change_once():
    table = BlockTable()
    table.extend([5, 6])
    assert table.take_changes() == (0, (5, 6))
    assert table.take_changes() == (2, ())
    table.extend([7])
    assert table.take_changes() == (2, (7,))
    table.extend([8])
    table.replace(1, 9)
    assert table.take_changes() == (1, (9, 7, 8))


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_a_request_owns_exactly_the_blocks_its_tokens_need(block_size):
    kv = KVCacheManager(100, block_size)
    r = request(num_tokens=50)
    kv.attach(r, [])
    for growth in (1, 3, 1, 4, 7, 16, 2):
        new = kv.allocate_slots(r, growth)
        r.num_computed_tokens += growth
        needed = -(-r.num_computed_tokens // block_size)
        assert (
            len(kv.tables["r"]) == needed and kv.tables["r"].block_ids[needed - len(new) :] == new
        )
        kv.check()
    kv.free(r)
    assert kv.pool.num_free == 99


def test_an_allocation_that_does_not_fit_changes_nothing():
    kv = KVCacheManager(4, 4)
    r = request(num_tokens=50)
    kv.attach(r, [])
    assert kv.allocate_slots(r, 5) == [1, 2]
    r.num_computed_tokens = 5
    assert kv.allocate_slots(r, 8) is None
    assert kv.tables["r"].block_ids == [1, 2] and kv.pool.num_free == 1
    assert kv.allocate_slots(r, 7) == [3]


class Remembering(NoCache):
    """A cache that knows one block, to see that the manager asks and obeys."""

    def __init__(self):
        self.canonical, self.offered = {}, []

    def insert(self, tokens, extra_key, block_ids):
        self.offered.append((tuple(tokens), list(block_ids)))
        return [self.canonical.get(b, b) for b in block_ids]


def test_full_computed_blocks_are_offered_to_the_cache_once_and_duplicates_given_back():
    cache = Remembering()
    kv = KVCacheManager(10, 4, cache)
    owner, twin = request("owner", 8), request("twin", 8)
    for r in (owner, twin):
        kv.attach(r, [])
        kv.allocate_slots(r, 8)
    cache.canonical = {3: 1}
    twin.num_computed_tokens = 3
    kv.publish(twin)
    assert cache.offered == []  # no block is full yet
    twin.num_computed_tokens = 7
    kv.publish(twin)
    kv.publish(twin)
    assert cache.offered == [(tuple(range(8)), [3])]
    assert kv.tables["twin"].block_ids == [1, 4] and kv.pool.ref_cnt[1] == 2
    assert kv.take_freed_blocks() == [3] and kv.take_freed_blocks() == []
    assert kv.tables["twin"].take_changes() == (0, (1, 4))
    kv.check()


def test_the_last_token_is_never_looked_up():
    class Asked(NoCache):
        def match_prefix(self, tokens, extra_key):
            self.tokens = list(tokens)
            return []

    kv = KVCacheManager(10, 4, cache := Asked())
    r = request(num_tokens=8)
    assert kv.get_computed_blocks(r) == [] and cache.tokens == list(range(7))
    r.reads_prefix_cache, cache.tokens = False, None
    assert kv.get_computed_blocks(r) == [] and cache.tokens is None


def test_bytes_per_token_by_hand():
    llama_3_8b = KVCacheSpec(16, num_layers=32, num_kv_heads=8, head_dim=128, dtype_bytes=2)
    llama_3_70b = KVCacheSpec(16, num_layers=80, num_kv_heads=8, head_dim=128, dtype_bytes=2)
    assert llama_3_8b.bytes_per_token == 128 * 1024
    assert llama_3_70b.bytes_per_token == 320 * 1024
    assert llama_3_8b.bytes_per_block == 2 * 1024**2
    assert llama_3_8b.num_blocks(2**30 - 1) == 511
