"""Prefix caches in random histories, through the manager and the pool, against a plain oracle."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.kvcache import hash_cache
from minivllm.kvcache.caches import CACHES
from minivllm.kvcache.hash_cache import HashCache, block_digest
from minivllm.kvcache.kv_cache_manager import KVCacheManager
from minivllm.kvcache.radix_cache import RadixCache
from minivllm.outputs import EngineCoreRequest
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams


class PlainCache:
    """What a prefix cache must do, by brute force: every prefix of full blocks is a key of its
    own, children are found by comparing all keys, and the next to go by looking at all."""

    def __init__(self, block_size, eviction="lru"):
        self.block_size, self.eviction = block_size, eviction
        self.block_of = {}  # (extra_key, all tokens up to the block's end) -> block id
        self.banned = set()
        self.idle_since, self.stored_at, self.num_uses = {}, {}, {}
        self.now = 0

    def prefixes(self, tokens, extra_key):
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            yield extra_key, tuple(tokens[:end])

    def match_prefix(self, tokens, extra_key):
        block_ids = []
        for prefix in self.prefixes(tokens, extra_key):
            if prefix not in self.block_of:
                break
            block_ids.append(self.block_of[prefix])
        return block_ids

    def insert(self, tokens, extra_key, block_ids):
        if block_ids and block_ids[0] in self.banned:
            return list(block_ids)
        canonical = []
        for own, prefix in zip(block_ids, self.prefixes(tokens, extra_key), strict=False):
            if prefix not in self.block_of:
                self.now += 1
                self.block_of[prefix] = own
                self.stored_at[own], self.num_uses[own] = self.now, 1
            canonical.append(self.block_of[prefix])
        assert len(canonical) == len(block_ids)
        return canonical

    def keep(self, block_id):
        self.banned -= {block_id}
        if block_id not in self.block_of.values():
            return False
        self.now += 1
        self.idle_since[block_id] = self.now
        return True

    def reuse(self, block_id):
        del self.idle_since[block_id]
        self.num_uses[block_id] += 1

    def below(self, prefix):
        return [
            self.block_of[other]
            for other in self.block_of
            if other[0] == prefix[0]
            and len(other[1]) > len(prefix[1])
            and other[1][: len(prefix[1])] == prefix[1]
        ]

    def num_evictable(self):
        return sum(
            all(b in self.idle_since for b in [block_id, *self.below(prefix)])
            for prefix, block_id in self.block_of.items()
        )

    def evict(self, n):
        if n > self.num_evictable():
            raise ValueError
        return [self.evict_one() for _ in range(n)]

    def evict_one(self):
        ends = [
            (prefix, b)
            for prefix, b in self.block_of.items()
            if b in self.idle_since and not self.below(prefix)
        ]
        rank = {
            "lru": lambda b: self.idle_since[b],
            "lfu": lambda b: (self.num_uses[b], self.idle_since[b]),
            "fifo": lambda b: self.stored_at[b],
        }[self.eviction]
        prefix, block_id = min(ends, key=lambda end: rank(end[1]))
        del self.block_of[prefix], self.idle_since[block_id]
        return block_id

    def clear(self):
        idle = [b for b in self.block_of.values() if b in self.idle_since]
        self.banned |= set(self.block_of.values()) - set(idle)
        self.block_of, self.idle_since = {}, {}
        return idle

    def take_events(self):
        return ()

    def check(self):
        assert all(b in self.block_of.values() for b in self.idle_since)


class Player:
    """Plays a history of small numbers on a manager, as a scheduler would, and writes down all
    that can be seen: what hit, every table, and which blocks went in which order."""

    def __init__(self, cache, block_size, num_blocks):
        self.kv = KVCacheManager(num_blocks, block_size, cache, num_host_blocks=num_blocks)
        self.running, self.swapped_out = {}, {}
        self.num_started = self.num_hits = 0
        self.seen = []

    def play(self, kind, a, b):
        if kind == "start":
            self.start(a, b)
        elif kind == "clear" and a % 23 == 0:
            self.clear()
        elif kind == "swap in" and self.swapped_out:
            self.swap_in(self.swapped_out[min(self.swapped_out)])
        elif kind == "compute" and self.running:
            self.compute(self.pick(a), 1 + b % (2 * self.kv.block_size))
        elif kind == "fork" and self.running:
            self.fork(self.pick(a))
        elif kind == "swap out" and self.running:
            self.swap_out(self.pick(a))
        elif kind == "stop" and self.running:
            self.stop(self.pick(a))
        self.kv.take_moves()
        self.seen.append({name: tuple(t.block_ids) for name, t in self.kv.tables.items()})
        self.seen.append(tuple(self.kv.pool.free_ids))

    def pick(self, a):
        return self.running[sorted(self.running)[a % len(self.running)]]

    def new_request(self, tokens, extra_key):
        self.num_started += 1
        name = f"{self.num_started:05}"
        return Request(
            EngineCoreRequest(name, tuple(tokens), SamplingParams(), extra_key=extra_key)
        )

    def start(self, a, b):
        """Prompts repeat each other's beginnings, under no tenant or one of two."""
        num_tokens = min(1 + b % (5 * self.kv.block_size), self.kv.max_tokens)
        tokens = [(a >> (i % 3)) & 1 for i in range(num_tokens)]
        request = self.new_request(tokens, (("tenant", a // 8),) if a // 8 > 5 else ())
        hit = self.kv.get_computed_blocks(request)
        self.seen.append(("hit", request.request_id, tuple(hit)))
        self.num_hits += len(hit)
        self.kv.attach(request, hit)
        self.running[request.request_id] = request
        if self.kv.allocate_slots(request, request.num_uncomputed_tokens) is None:
            self.stop(request)

    def compute(self, request, num_tokens):
        """Compute so many tokens more; past the prompt, each makes a new one."""
        while request.num_uncomputed_tokens < num_tokens:
            request.token_ids.append(request.num_tokens * request.num_tokens % 3 & 1)
        has_room = self.kv.copy_if_shared(request)
        if not has_room or self.kv.allocate_slots(request, num_tokens) is None:
            self.stop(request)
            return
        request.num_computed_tokens += num_tokens
        self.kv.publish(request)

    def fork(self, parent):
        """Share the blocks of a request that has published all its full ones."""
        num_full = parent.num_computed_tokens // self.kv.block_size
        is_published = self.kv.tables[parent.request_id].num_published == num_full
        if parent.num_computed_tokens > 0 and is_published:
            tokens = parent.token_ids[: parent.num_computed_tokens]
            child = self.new_request(tokens, parent.extra_key)
            self.kv.fork(parent, child)
            self.running[child.request_id] = child

    def swap_out(self, request):
        if self.kv.swap_out(request):
            self.swapped_out[request.request_id] = self.running.pop(request.request_id)

    def swap_in(self, request):
        if self.kv.fits(request, request.num_tokens):
            self.kv.swap_in(request)
            self.running[request.request_id] = self.swapped_out.pop(request.request_id)

    def stop(self, request):
        self.kv.free(self.running.pop(request.request_id))

    def clear(self):
        for block_id in sorted(self.kv.cache.clear()):
            self.kv.pool.give_back(block_id)

    def end(self):
        """Stop all, evict all: every block must be free."""
        for request in [*self.running.values(), *self.swapped_out.values()]:
            self.kv.forget(request)
        cache, pool = self.kv.cache, self.kv.pool
        assert cache.num_evictable() == pool.num_blocks - 1 - pool.num_free
        for block_id in cache.evict(cache.num_evictable()):
            pool.give_back(block_id)
        self.kv.check()
        assert sorted(pool.free_ids) == list(range(1, pool.num_blocks))
        assert cache.num_evictable() == 0 and cache.match_prefix([0] * 50, ()) == []


KINDS_OF_STEP = (
    *("start", "start", "start", "compute", "compute", "compute", "compute", "fork"),
    *("swap out", "swap in", "stop", "stop", "clear"),
)
NUMBERS = st.integers(0, 63)
STEPS = st.tuples(st.sampled_from(KINDS_OF_STEP), NUMBERS, NUMBERS)
HISTORIES = st.lists(STEPS, min_size=20, max_size=60)
KINDS = {
    "hash": (HashCache, {}),
    "radix": (RadixCache, {}),
    "radix, lfu": (RadixCache, {"eviction": "lfu"}),
    "radix, fifo": (RadixCache, {"eviction": "fifo"}),
}


def random_history(rng, num_steps):
    return [
        (rng.choice(KINDS_OF_STEP), rng.randrange(64), rng.randrange(64)) for _ in range(num_steps)
    ]


def assert_nothing_is_left(cache):
    if isinstance(cache, HashCache):
        assert not cache._entries and not cache._buckets and not cache._idle
    else:
        assert not cache._blocks and not cache.root.children and not cache._queue
    assert not cache._banned


def compare(cache, oracle, num_blocks, history):
    """Play a history on both; after each step all that can be seen must be equal."""
    block_size = oracle.block_size
    own, plain = Player(cache, block_size, num_blocks), Player(oracle, block_size, num_blocks)
    for step in history:
        own.play(*step)
        plain.play(*step)
        own.kv.check()
        assert own.seen[-3:] == plain.seen[-3:], step
        assert cache.num_evictable() == oracle.num_evictable()
    assert own.seen == plain.seen
    own.end()
    assert_nothing_is_left(cache)


@pytest.mark.parametrize("kind", KINDS)
@given(history=HISTORIES, block_size=st.sampled_from([1, 2, 3, 4]), num_blocks=st.integers(5, 14))
@settings(max_examples=150)
def test_a_cache_does_what_brute_force_does(kind, history, block_size, num_blocks):
    make, options = KINDS[kind]
    eviction = options.get("eviction", "lru")
    cache, oracle = make(block_size, **options), PlainCache(block_size, eviction)
    compare(cache, oracle, num_blocks, history)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_blocks", [8, 30])
def test_a_cache_does_what_brute_force_does_for_a_thousand_steps(kind, num_blocks):
    make, options = KINDS[kind]
    eviction = options.get("eviction", "lru")
    rng = random.Random(num_blocks)
    cache, oracle = make(2, **options), PlainCache(2, eviction)
    compare(cache, oracle, num_blocks, random_history(rng, 1000))


@pytest.mark.parametrize("num_blocks", [8, 30])
def test_e5_a_table_whose_keys_are_all_equal_does_what_brute_force_does(monkeypatch, num_blocks):
    monkeypatch.setattr(hash_cache, "block_key", lambda *content: 7)
    rng = random.Random(num_blocks)
    compare(HashCache(2), PlainCache(2), num_blocks, random_history(rng, 500))


@pytest.mark.parametrize("num_blocks", [9, 14, 500])
def test_the_tree_and_the_table_give_the_same_hits_and_evict_the_same_blocks(num_blocks):
    """Leaf LRU is block LRU: with ample memory and under pressure, in 150 histories each."""
    num_hits = num_evicted = 0
    for seed in range(150):
        rng = random.Random(seed)
        block_size = rng.choice([1, 2, 3])
        table = Player(HashCache(block_size), block_size, num_blocks)
        tree = Player(RadixCache(block_size), block_size, num_blocks)
        for step in random_history(rng, 120):
            table.play(*step)
            tree.play(*step)
            assert table.seen == tree.seen, (seed, step)
            evicted = table.kv.take_evicted_blocks()
            assert evicted == tree.kv.take_evicted_blocks()
            num_evicted += len(evicted)
            table.seen.clear()
            tree.seen.clear()
        num_hits += table.num_hits
    print(f"{num_hits} blocks hit, {num_evicted} evicted")
    assert num_hits > 1000 and (num_evicted > 1000) == (num_blocks < 100)


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_events_tell_a_listener_what_is_cached(kind):
    """A listener that only hears the events answers every look-up as the cache does."""
    for seed in range(30):
        rng = random.Random(seed)
        cache = CACHES[kind](2, record_events=True)
        player = Player(cache, 2, rng.choice([8, 40]))
        content = {}  # block id -> (parent's block id, tokens, extra_key)
        for step in random_history(rng, 100):
            player.play(*step)
            for event in cache.take_events():
                if event[0] == "stored":
                    assert event[1] not in content and (event[2] is None or event[2] in content)
                    assert event[2:] not in content.values()
                    content[event[1]] = event[2:]
                elif event[0] == "removed":
                    assert event[1] not in [parent for parent, _, _ in content.values()]
                    del content[event[1]]
                else:
                    assert event == ("cleared",)
                    content.clear()
            block_at = {place: block_id for block_id, place in content.items()}
            tokens = [rng.randrange(2) for _ in range(10)]
            for extra_key in ((), (("tenant", 0),), (("tenant", 1),)):
                expected, parent = [], None
                for i in range(0, 10, 2):
                    parent = block_at.get((parent, tuple(tokens[i : i + 2]), extra_key))
                    if parent is None:
                        break
                    expected.append(parent)
                assert cache.match_prefix(tokens, extra_key) == expected


@pytest.mark.parametrize("kind", CACHES)
def test_without_a_listener_no_events_pile_up(kind):
    cache = CACHES[kind](2)
    player = Player(cache, 2, 8)
    for step in random_history(random.Random(0), 100):
        player.play(*step)
    assert cache.take_events() == () and cache.num_evictable() <= 7


def everything_seen():
    """What two caches do in one history, and a digest: text that no process may tell apart."""
    seen = []
    for make in (HashCache, RadixCache):
        player = Player(make(2), 2, 12)
        for step in random_history(random.Random(5), 300):
            player.play(*step)
        seen.append(player.seen)
    digest = block_digest(None, [1, 2], ("tenant", "a"), "a model")
    return repr((seen, block_digest(digest, [3, 4], ("tenant", "a"), "a model").hex()))


def test_e17_nothing_depends_on_how_a_process_hashes():
    here = Path(__file__).parent
    code = "from test_prefix_cache_laws import everything_seen; print(everything_seen())"
    for seed in ("1", "12345"):
        path = os.pathsep.join([str(here), str(here.parent)])
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        other = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True)
        assert other.stdout.decode().strip() == everything_seen(), other.stderr
