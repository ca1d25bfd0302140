"""Lesson 05's two servers, against hand-worked cases and counting by other means."""

from __future__ import annotations

import re

import pytest

from lessons.block_sizes import law_by_block_size
from lessons.glossary import GLOSSARY
from lessons.my_code import Engine
from lessons.two_memories import (
    Arrival,
    Contiguous,
    arrivals,
    serve_contiguous,
    serve_paged,
    where_it_went,
)
from minivllm.kvcache.block_pool import BlockPool

NUM_SLOTS = 960
GAPS = range(1, 7)


def letters(moment):
    """A letter a slot: a capital holds a token, a small one waits for it, - never gets one."""
    marks = {"prefill": str.upper, "decode": str.upper, "reserved": str.lower}
    return "".join(marks[kind](owner) if kind in marks else {"inside": "-", "outside": "x",
                   "free": "."}[kind] for kind, owner in moment.slots)  # fmt: skip


def test_a_run_takes_the_first_hole_that_is_long_enough():
    memory = Contiguous(10)
    assert memory.reserve("a", 3) and memory.reserve("b", 2) and memory.reserve("c", 4)
    memory.free("b")
    assert memory.holes() == [range(3, 5), range(9, 10)]
    assert not memory.reserve("d", 3)  # three are free, in two holes
    assert memory.reserve("e", 1) and memory.runs["e"] == range(3, 4)
    assert memory.reserve("f", 1) and memory.runs["f"] == range(4, 5)


def test_three_users_by_hand():
    users = [Arrival("a", 0, 2, 2, 4), Arrival("b", 1, 2, 3, 3), Arrival("c", 4, 1, 1, 2)]
    told = [letters(moment) for moment in serve_contiguous(users, 14, 7)]
    assert told == [
        "AAaa--........",
        "AAAa--BBbbb...",
        "AAAA--BBBbb...",
        "......BBBBb...",
        "Cc-...BBBBB...",
        "CC-...........",
        "." * 14,
    ]


def test_the_same_three_users_in_blocks_by_hand():
    users = [Arrival("a", 0, 2, 2, 4), Arrival("b", 1, 2, 3, 3), Arrival("c", 4, 1, 1, 2)]
    told = [letters(moment) for moment in serve_paged(users, 14, 7, 2, Engine())]
    assert told[:4] == [
        "AA............",
        "AAAaBB........",
        "AAAABBBb......",
        "....BBBB......",
    ]
    assert sorted(told[4]) == sorted("BBBBB-Cc......")
    assert sorted(told[5]) == sorted("CC............")
    assert told[6] == "." * 14


@pytest.mark.parametrize("gap", GAPS)
def test_who_is_refused_found_no_hole_and_who_is_let_in_found_one(gap):
    users = {user.step: user for user in arrivals(gap)}
    refused = ""
    for moment in serve_contiguous(list(users.values()), NUM_SLOTS, 26 * gap):
        user = users.get(moment.step)
        free = "".join("." if kind in ("free", "outside") else " " for kind, _ in moment.slots)
        longest = max(map(len, free.split()), default=0)
        assert longest == moment.longest_hole and free.count(".") == moment.num_free
        if user and user.name in moment.refused:
            refused += user.name
            assert longest < moment.wanted == user.num_prompt + user.max_tokens
            assert moment.count("outside") == moment.num_free  # each hole is too small for it
            told = re.search(r"wants (\d+) .*; (\d+) belong to nobody, .* has (\d+)", moment.said)
            assert [int(n) for n in told.groups()] == [moment.wanted, free.count("."), longest]
        else:
            upcoming = next((u for step, u in sorted(users.items()) if step > moment.step), None)
            wanted = upcoming.num_prompt + upcoming.max_tokens if upcoming else 0
            short = sum(len(hole) for hole in free.split() if len(hole) < wanted)
            assert moment.count("outside") == short and moment.wanted == 0
            assert not user or user.name in moment.running
    assert refused


@pytest.mark.parametrize("block_size", [1, 4, 16, 64])
def test_a_paged_memory_wastes_only_ends_of_last_blocks(block_size):
    users = {user.name: user for user in arrivals(2)}
    for moment in serve_paged(list(users.values()), NUM_SLOTS, 120, block_size, Engine()):
        for name in moment.running:
            mine = [kind for kind, owner in moment.slots if owner == name]
            tokens = mine.count("prefill") + mine.count("decode")
            assert mine.count("prefill") == users[name].num_prompt
            assert len(mine) == -(-tokens // block_size) * block_size
        assert {owner for _, owner in moment.slots} <= {"", *moment.running}
        assert moment.count("outside") == 0


def test_a_contiguous_memory_keeps_what_the_user_might_ask_for():
    users = {user.name: user for user in arrivals(3)}
    for moment in serve_contiguous(list(users.values()), NUM_SLOTS, 120):
        for name in moment.running:
            user, mine = users[name], [kind for kind, owner in moment.slots if owner == name]
            assert len(mine) == user.num_prompt + user.max_tokens
            assert mine.count("inside") == user.max_tokens - user.num_answer


def test_everybody_is_served_refused_or_cut_off_and_writes_a_token_a_step():
    users = arrivals(1)
    moments = serve_paged(users, NUM_SLOTS, 220, 16, Engine())
    end = moments[-1]
    assert sorted(end.served + end.refused + end.cut_off) == sorted(user.name for user in users)
    assert end.running == "" and end.cut_off
    for user in users:
        steps = [moment.step for moment in moments if user.name in moment.running]
        if user.name in end.served:
            assert steps == list(range(user.step, user.step + user.num_answer + 1))
        elif user.name in end.cut_off:
            assert 0 < len(steps) <= user.num_answer


@pytest.mark.parametrize("gap", GAPS)
def test_paging_serves_more_of_the_same_users(gap):
    users = arrivals(gap)
    before = serve_contiguous(users, NUM_SLOTS, 26 * gap + 180)[-1]
    after = serve_paged(users, NUM_SLOTS, 26 * gap + 180, 16, Engine())[-1]
    assert len(after.served) >= 1.5 * len(before.served)


def test_the_surprise_of_the_lesson_is_there():
    moments = serve_contiguous(arrivals(2), NUM_SLOTS, 60)
    surprise = next(m for m in moments if m.wanted and m.num_free >= m.wanted)
    assert surprise.empty_percent > 60 and surprise.longest_hole < surprise.wanted


def test_the_law_agrees_with_the_count():
    picture = law_by_block_size(arrivals(4), NUM_SLOTS, 280, Engine())
    rows = {row.label: [float(cell.text) for cell in row.cells] for row in picture.rows}
    for law, counted in zip(rows["unused, by the law"], rows["unused, counted"]):
        assert counted == pytest.approx(law, abs=0.5)
    entries = rows["table entries"]
    assert entries == sorted(entries, reverse=True) and entries[0] > 40 * entries[-1]


def test_blocks_come_from_the_engine_that_is_given():
    class FromTheRight(BlockPool):
        def allocate(self, n):
            self.free_ids.reverse()
            block_ids = super().allocate(n)
            self.free_ids.reverse()
            return block_ids

    class Other(Engine):
        def __call__(self, path):
            found = super().__call__(path)
            if path.endswith("KVCacheManager"):

                def make(num_blocks, block_size):
                    kv = found(num_blocks, block_size)
                    kv.pool = FromTheRight(num_blocks, kv.cache)
                    return kv

                return make
            return found

    users = arrivals(2)[:1]
    ours = letters(serve_paged(users, NUM_SLOTS, 1, 16, Engine())[0])
    theirs = letters(serve_paged(users, NUM_SLOTS, 1, 16, Other())[0])
    assert ours.startswith("A") and theirs.startswith(".") and theirs.endswith(("A", "a", "-"))


def test_a_caption_tells_free_slots_from_wasted_ones():
    users = arrivals(1)
    memories = {
        "contiguous": serve_contiguous(users, NUM_SLOTS, 115)[-1],
        "paged": serve_paged(users, NUM_SLOTS, 115, 16, Engine())[-1],
    }
    told = {}
    for name, moment in memories.items():
        said = moment.memory(name).caption
        numbers = re.search(r"(\d+) slots hold a token, (\d+) are wasted, (\d+|none) free", said)
        told[name] = [int(n.replace("none", "0")) for n in numbers.groups()]
        assert sum(told[name]) == NUM_SLOTS
        assert told[name][0] == moment.count("prefill", "decode")
        assert told[name][2] == moment.count("free")
    assert told["contiguous"][1] > 10 * told["paged"][1] and told["paged"][2] > NUM_SLOTS / 2


def test_the_three_wastes_have_one_name_each():
    shown = [where_it_went({"a": m}).text() + m.memory("a").svg(680)
             for m in serve_contiguous(arrivals(2), NUM_SLOTS, 60)]  # fmt: skip
    for name in ("reserved", "internal", "external"):
        assert any(name in text for text in shown) and f"{name} waste" in GLOSSARY
    said = re.sub(r"<[^>]+>", " ", " ".join(shown))
    assert not re.search(r"\b(inside|outside)\b", said)


def test_the_bars_count_every_slot_once():
    moment = serve_contiguous(arrivals(2), NUM_SLOTS, 30)[-1]
    (bar,) = where_it_went({"contiguous": moment}).bars
    assert bar.value == NUM_SLOTS
    assert {part.kind: part.value for part in bar.parts} == {
        kind: moment.count(kind) for kind, _ in moment.slots
    }
