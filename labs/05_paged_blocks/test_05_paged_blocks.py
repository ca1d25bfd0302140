"""Blocks: handed out, shared, given back, found again through a table."""

from collections import deque
from typing import NamedTuple

from labs.histories import shortest, story
from labs.judge import Gone, Raised, TimeUp, Wrong
from labs.runner import further
from labs.toy import ToyEngine, greedy, request, slots_of, text_of
from lessons import draw

POOL = "kvcache.block_pool.BlockPool"


def picture(pool, caption=""):
    return draw.block_pool(pool.ref_cnt, pool.free_ids, caption)


def test_1_hands_out_distinct_blocks_from_the_left_with_one_reader_each(lab):
    pool = lab.new(POOL, 7)
    got = pool.allocate(3)
    lab.same(
        sorted(got), [1, 2, 3],
        "A new pool of 7 has blocks 1 to 6 in its queue. Asked for 3 it hands out the three at "
        "the left.", picture(pool, "after allocate(3)"),
    )  # fmt: skip
    lab.same(
        pool.ref_cnt, [0, 1, 1, 1, 0, 0, 0],
        "Each block that was handed out has one reader, the others have none.",
        picture(pool, "after allocate(3)"),
    )  # fmt: skip
    lab.same(sorted(pool.allocate(2)), [4, 5], "The next two are those at the left now.")


def test_2_can_hand_out_its_very_last_block(lab):
    pool = lab.new(POOL, 6)
    try:
        got = pool.allocate(5)
    except Raised as error:
        if error.kind != "ValueError":
            raise
        raise Wrong("Five blocks are free and five are wanted: that fits.", expected="five blocks",
                    got=str(error), picture=picture(pool)) from error  # fmt: skip
    lab.same(sorted(got), [1, 2, 3, 4, 5], "All five blocks are handed out.")
    lab.same(pool.allocate(0), [], "Nothing is wanted of an empty pool: that fits too.")


def test_3_takes_nothing_when_short(lab):
    pool = lab.new(POOL, 6)
    pool.allocate(2)
    says = "Three blocks are free and four are wanted. It must refuse, and change nothing."
    with lab.raises("ValueError", says, picture(pool, "before")):
        pool.allocate(4)
    lab.same(pool.num_free, 3, says + " Blocks have left the queue.", picture(pool, "afterwards"))
    lab.same(pool.ref_cnt, [0, 1, 1, 0, 0, 0], says, picture(pool, "afterwards"))


def test_4_keeps_a_block_that_still_has_a_reader(lab):
    pool = lab.new(POOL, 6)
    head, tail = pool.allocate(2)
    pool.share([head])
    pool.release([head, tail])
    lab.same(
        (pool.ref_cnt[head], pool.ref_cnt[tail]), (1, 0),
        f"Two requests read block {head}, one of them leaves: one reader is left. Block {tail} "
        f"had one reader and has none now.", picture(pool, "readers afterwards"),
    )  # fmt: skip
    lab.true(
        head not in pool.free_ids and tail in pool.free_ids,
        f"Only block {tail} is free now; block {head} is still being read.",
        picture(pool, "afterwards"),
    )


def test_5_a_block_released_twice_is_loud(lab):
    pool = lab.new(POOL, 6)
    (block_id,) = pool.allocate(1)
    pool.release([block_id])
    says = (
        f"Block {block_id} was released already and has no reader. Silence here would hand it to "
        f"two requests later; an assert stops at the culprit."
    )
    with lab.raises("AssertionError", says, picture(pool, "before the second release")):
        pool.release([block_id])


def test_6_reuses_the_longest_idle_first_and_a_tail_before_its_head(lab):
    pool = lab.new(POOL, 6)
    ids = pool.allocate(5)
    pool.release(ids[:2])
    pool.release(ids[2:])
    expected = [ids[1], ids[0], ids[4], ids[3], ids[2]]
    lab.same(
        pool.free_ids, expected,
        f"Released were blocks {ids[:2]}, then blocks {ids[2:]}. What is free for longest stands "
        f"at the left, and of blocks released together the last one first: then a cache (lab 06) "
        f"loses the end of a prompt before its beginning.",
        picture(pool, "the queue, 1 is reused next"),
    )  # fmt: skip
    lab.same(
        pool.allocate(5), expected,
        f"The queue holds blocks {expected}. They come out in this order.",
    )  # fmt: skip


class KeepsOne:
    """A prefix cache that wants to keep one block."""

    def __init__(self, wanted):
        self.wanted, self.asked = wanted, []

    def keep(self, block_id):
        self.asked.append(block_id)
        return block_id == self.wanted

    def reuse(self, block_id):
        pass

    def num_evictable(self):
        return 1


def test_7_a_block_that_the_cache_keeps_does_not_go_back(lab):
    cache = KeepsOne(wanted=2)
    pool = lab.new(POOL, 6, lab.lend(cache, "keep", "reuse", "num_evictable"))
    pool.release(sorted(pool.allocate(3)))
    lab.same(
        cache.asked, [3, 2, 1],
        "The prefix cache is asked about each block that lost its last reader, in the order of "
        "the release.",
    )  # fmt: skip
    lab.same(
        pool.free_ids, [4, 5, 3, 1],
        "The cache keeps block 2: it has no reader, and is not free either.",
        draw.block_pool(pool.ref_cnt, pool.free_ids, "LOST is right here: the cache has block 2"),
    )  # fmt: skip
    lab.same(
        pool.given_up, [3, 1],
        "A block goes back by give_back, which also notes that its content is worthless now.",
    )  # fmt: skip


def test_8_maps_positions_through_the_table(lab):
    mapping = "kvcache.block_table.slot_mapping"

    def check(table, start, num, size):
        lab.same(
            lab.call(mapping, tuple(table), start, num, size), slots_of(table, start, num, size),
            f"The request owns blocks {table} of {size} tokens each. Wanted are the slots of "
            f"{num} positions from position {start} on.",
            draw.block_table(table, size, start, num) if len(table) * size <= 60 else None,
        )  # fmt: skip

    check([7, 2, 9], 5, 6, 4)
    check([3], 0, 1, 4)
    check([3], 2, 0, 4)
    for start in range(1, 20):
        size = lab.random.choice((1, 3, 4, 16))
        num = lab.random.randint(1, 12)
        num_blocks = (start + num - 1) // size + 1
        check(lab.random.sample(range(1, 99), num_blocks), start, num, size)
    with lab.raises("IndexError", "Two blocks of 4 hold positions 0 to 7; position 8 has no slot."):
        lab.call(mapping, (7, 2), 6, 3, 4)


def test_9_nothing_is_lost_in_a_thousand_random_steps(lab):
    ops = [(lab.random.choice(("take", "share", "leave", "leave")), lab.random.randrange(100))
           for _ in range(1000)]  # fmt: skip
    wrong, num_done, _ = play(lab, ops)
    if wrong is None:
        return
    short = shortest(ops[:num_done], lambda some: play(lab, some)[0] is not None)
    pool = lab.new(POOL, 12)
    wrong, _, told = play(lab, short, pool)
    try:
        shown = picture(pool)
    except (Raised, Gone, TimeUp, EOFError):
        shown = None
    raise Wrong(
        "The shortest history that goes wrong, in a pool of 12:\n" + story(told, wrong),
        picture=shown,
    )


def play(lab, ops, pool=None):
    """Run a history beside the plainest bookkeeping. What went wrong, if anything; after how many
    of the ops; and the history in words."""
    steps, told = list(planned(ops)), []
    calls = [step.call for step in steps]
    found = lab.steps(pool or lab.new(POOL, 12), calls, "ref_cnt", "free_ids")
    for step in steps:
        told.append(step.words)
        try:
            got, ref_cnt, free_ids = next(found)
        except Raised as error:
            if error.kind == "NotImplementedError":
                raise
            return f"your code raises {error}", step.number, told
        if step.due is not None and sorted(got) != step.due:
            return f"out come {sorted(got)}, due were {step.due}", step.number, told
        wrong = fault(ref_cnt, free_ids, step.readers, step.free)
        if wrong:
            return wrong, step.number, told
    return None, len(ops), told


class Step(NamedTuple):
    """A call, and the state that it should leave."""

    number: int  # of the op, from 1
    words: str
    call: tuple[str, tuple]
    due: list[int] | None  # what allocate should return, sorted
    readers: list[int]  # by block
    free: list[int]


def planned(ops):
    """The calls that a history comes to. Blocks are passed on in the order of the queue."""
    held, readers, free = [], [0] * 12, deque(range(1, 12))
    for number, (what, draw_) in enumerate(ops, 1):
        due = None
        if what == "take":
            n = draw_ % 4 + 1
            if n > len(free):
                continue
            ids = [free.popleft() for _ in range(n)]
            words, call, due = f"take {n}", ("allocate", (n,)), sorted(ids)
            held.append(ids)
        elif held and what == "share":
            ids = held[draw_ % len(held)]
            ids = ids[draw_ % len(ids) :]
            words, call = f"a second reader for {ids}", ("share", (ids,))
            held.append(ids)
        elif held:
            ids = held.pop(draw_ % len(held))
            words, call = f"a reader leaves {ids}", ("release", (ids,))
        else:
            continue
        for block_id in reversed(ids):
            readers[block_id] += -1 if call[0] == "release" else 1
            if readers[block_id] == 0:
                free.append(block_id)
        yield Step(number, words, call, due, list(readers), list(free))


def fault(ref_cnt, free_ids, readers, free):
    for block_id, due in enumerate(readers):
        if ref_cnt[block_id] != due:
            return f"block {block_id} counts {ref_cnt[block_id]} readers and has {due}"
        if due == 0 and block_id and block_id not in free_ids:
            return f"block {block_id} is now nobody's"
    if free_ids != free:
        return f"the queue is {free_ids} and should be {free}"
    return None


def test_10_the_engine_writes_the_same_text_on_your_blocks(lab):
    slots = "kvcache.block_table.slot_mapping"
    engine = ToyEngine(
        lab, num_blocks=24, block_size=4, budget=12,
        slots=lambda *args: lab.call(slots, *args),
    )  # fmt: skip
    shuffle(lab, engine.kv.pool)
    prompts = {name: [lab.random.randrange(50) for _ in range(lab.random.randint(5, 17))]
               for name in "abcdef"}  # fmt: skip
    prompts["b"] = list(reversed(prompts["a"]))
    for name, prompt in prompts.items():
        engine.add(name, prompt, 8)
    engine.run(200, "Six requests of 8 tokens should have ended long ago.")
    for name, prompt in prompts.items():
        due = greedy(prompt, 8)
        lab.same(
            text_of(engine.outputs[name]), text_of(due),
            f"Request {name} is written differently on your blocks than alone: somewhere its "
            f"memory holds another token.", engine.timeline(),
        )  # fmt: skip
    lab.same(engine.kv.pool.num_free, 23, "All requests have ended: all blocks are free again.",
             picture(engine.kv.pool))  # fmt: skip


def shuffle(lab, pool):
    """Put the queue in a random order, as after hours of work."""
    ids = pool.allocate(23)
    lab.random.shuffle(ids)
    for block_id in ids:
        pool.release([block_id])
    pool.given_up = []


def grown(lab, num_blocks, size, cache="prefix_cache.NoCache"):
    """A manager, and a request with an empty table."""
    made = lab.new(f"kvcache.{cache}", size)
    kv = lab.new("kvcache.kv_cache_manager.KVCacheManager", num_blocks, size, made)
    return kv, lambda name, tokens: start(lab, kv, name, tokens)


def start(lab, kv, name, tokens):
    asked = lab.new("request.Request", request(name, tokens, 1))
    kv.attach(asked, [])
    return asked


@further("blocks_needed", "KVCacheManager.allocate_slots")
def test_11_a_request_owns_exactly_the_blocks_its_tokens_need(lab):
    needed = "kvcache.block_table.blocks_needed"
    for owned, tokens, size in ((0, 0, 4), (0, 1, 4), (0, 4, 4), (0, 5, 4), (2, 8, 4), (2, 9, 4),
                                (5, 8, 4), (0, 7, 1), (1, 7, 3)):  # fmt: skip
        blocks = 0
        while (owned + blocks) * size < tokens:
            blocks += 1
        lab.same(lab.call(needed, owned, tokens, size), blocks,
                 f"A request owns {owned} blocks of {size} tokens and will hold {tokens} tokens: "
                 f"so many more it needs.")  # fmt: skip
    for size in (1, 3, 16):
        kv, begin = grown(lab, 60, size)
        asked, num_tokens = begin("a", range(40)), 0
        for num_new in (1, 3, 1, 4, 7, 16, 2):
            new = kv.allocate_slots(asked, num_new)
            lab.true(isinstance(new, list), "There is room: the new block ids come back as a list.",
                     got=new)  # fmt: skip
            num_tokens += num_new
            asked.num_computed_tokens = num_tokens
            table = kv.tables["a"].block_ids
            lab.same(
                len(table), -(-num_tokens // size),
                f"The request has {num_tokens} tokens now (the last {num_new} are new) in blocks "
                f"of {size}. So many blocks it owns.", draw.block_table(table[:12], min(size, 4)),
            )  # fmt: skip
            lab.same(table[len(table) - len(new) :], new, "What is returned is what was added.")


@further("blocks_needed", "KVCacheManager.allocate_slots")
def test_12_tokens_on_their_way_have_their_place_already(lab):
    for size in (1, 4, 16):
        kv, begin = grown(lab, 60, size)
        asked = begin("a", range(60))
        kv.allocate_slots(asked, 6)
        asked.num_in_flight_tokens = 6
        for num_computed, in_flight, num_new in ((0, 6, 5), (6, 5, 8), (11, 8, 2), (19, 2, 14)):
            asked.num_computed_tokens, asked.num_in_flight_tokens = num_computed, in_flight
            kv.allocate_slots(asked, num_new)
            num_tokens = num_computed + in_flight + num_new
            lab.same(
                len(kv.tables["a"].block_ids), -(-num_tokens // size),
                f"Of the request {num_computed} tokens are computed, and {in_flight} are in a step "
                f"that has not come back. {num_new} more make {num_tokens}, in blocks of {size}. "
                f"So many blocks it owns.",
                draw.block_table(kv.tables["a"].block_ids[:12], min(size, 4)),
            )  # fmt: skip


@further("blocks_needed", "KVCacheManager.allocate_slots")
def test_13_an_allocation_that_does_not_fit_changes_nothing(lab):
    kv, begin = grown(lab, 6, 4)
    asked = begin("a", range(40))
    kv.allocate_slots(asked, 9)
    asked.num_computed_tokens = 9
    before = kv.tables["a"].block_ids
    got = kv.allocate_slots(asked, 13)
    says = "Two blocks are free, and 13 more tokens take three. The answer is None"
    lab.same(got, None, says + ".", picture(kv.pool))
    lab.same(kv.tables["a"].block_ids, before, says + ", and the table is as before.")
    lab.same(kv.pool.num_free, 2, says + ", and the pool is as before.", picture(kv.pool))
    got = kv.allocate_slots(asked, 11)
    lab.true(isinstance(got, list) and len(got) == 2,
             "Two blocks are free, and 11 more tokens take two: that fits.", got=got)  # fmt: skip


@further("KVCacheManager.allocate_slots")
def test_14_blocks_that_the_cache_could_give_up_are_room(lab):
    kv, begin = grown(lab, 6, 4, "hash_cache.HashCache")
    first = begin("a", range(20))
    kv.allocate_slots(first, 20)
    first.num_computed_tokens = 20
    kv.publish(first)
    kv.free(first)
    second = begin("b", range(50, 62))
    got = kv.allocate_slots(second, 12)
    lab.true(
        isinstance(got, list) and len(got) == 3,
        "All five blocks are kept by the prefix cache, and nobody reads them. A new request needs "
        "three: the cache has to give way.", picture(kv.pool, "LOST here: kept by the cache"),
        expected="three block ids", got=got,
    )  # fmt: skip


@further("blocks_needed", "KVCacheManager.allocate_slots")
def test_15_no_room_leaves_tables_queue_and_cache_as_they_were(lab):
    kv, begin = grown(lab, 6, 4, "hash_cache.HashCache")
    gone = begin("gone", range(8))
    kv.allocate_slots(gone, 8)
    gone.num_computed_tokens = 8
    kv.publish(gone)
    kv.free(gone)
    running, waiting = begin("running", range(20, 40)), begin("waiting", range(50, 70))
    kv.allocate_slots(running, 8)
    running.num_computed_tokens = 8
    unknown = lab.new("request.Request", request("unknown", range(70, 90), 1))
    before = state_of(kv)
    for asked, told in (
        (running, "A request with two blocks"),
        (waiting, "A request that owns no block yet"),
        (unknown, "A request that the manager has no table of"),
    ):
        try:
            got = kv.allocate_slots(asked, 20)
        except Raised as error:
            if error.kind == "NotImplementedError" or asked is not unknown:
                raise
            got = None
        says = (
            f"One block is free, and the prefix cache could give up two. {told} asks for 20 more "
            f"tokens, at least five blocks. The answer is None, and nothing is changed"
        )
        lab.same(got, None, says + ".", picture(kv.pool, "LOST here: kept by the cache"))
        for (what, due), now in zip(before.items(), state_of(kv).values()):
            lab.same(now, due, f"{says}. But the {what} is not as before.",
                     picture(kv.pool, "afterwards; LOST here: kept by the cache"))  # fmt: skip


def state_of(kv):
    """All that a call may change, in words."""
    return {
        "table of some request": {name: table.block_ids for name, table in kv.tables.items()},
        "count of readers": kv.pool.ref_cnt,
        "queue of free blocks": kv.pool.free_ids,
        "list of blocks that were given up": kv.pool.given_up,
        "list of blocks that the cache had to forget": kv.evicted,
        "number of blocks that the cache could give up": kv.cache.num_evictable(),
    }
