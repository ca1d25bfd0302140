"""The same users at two servers: one gives each a run of KV memory that is long enough for the
longest answer, the other gives blocks as tokens come.

Both serve step by step, and each step leaves a `Moment` to draw. Nobody queues here: who finds no
room is refused, so that memory alone decides. The first server is what engines did before paging;
the second runs on the engine's own KVCacheManager, BlockPool and slot_mapping, or on yours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from minivllm.outputs import EngineCoreRequest
from minivllm.sampling_params import SamplingParams

from . import draw
from .bars import Bar, Bars, Part
from .memory_map import MemoryMap, runs_of

TOKENS = (draw.PREFILL, draw.DECODE)  # kinds of slots that hold one
MAX_TOKENS = (96, 160, 224)  # what users allow an answer to take
NAMES = {
    draw.PREFILL: "prompt", draw.DECODE: "answer", draw.RESERVED: "reserved",
    draw.INSIDE: "internal", draw.OUTSIDE: "external", draw.FREE: "free",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arrival:
    """A user's request. The server knows max_tokens when it comes; num_answer only at the end."""

    name: str
    step: int
    num_prompt: int
    num_answer: int
    max_tokens: int


def arrivals(gap: int, num_users: int = 26, seed: int = 25) -> tuple[Arrival, ...]:
    """Users A, B, C, ..., `gap` steps apart: the same ones whatever the gap."""
    random = Random(seed)
    made = []
    for number in range(num_users):
        max_tokens = random.choice(MAX_TOKENS)
        num_answer = min(round(random.lognormvariate(3.6, 0.6)), max_tokens)
        name, prompt = chr(65 + number), random.randint(16, 80)
        made.append(Arrival(name, number * gap, prompt, num_answer, max_tokens))
    return tuple(made)


@dataclass(frozen=True, slots=True)
class Moment:
    """One memory after one step. slots: (kind, owner) of each. served: who was let in and not cut
    off, so far. said: what happened to who came in this step; wanted: the slots of one who was
    refused in it, else 0."""

    step: int
    slots: tuple[tuple[str, str], ...]
    running: str
    served: str
    refused: str
    cut_off: str
    said: str
    wanted: int = 0

    @property
    def num_free(self) -> int:
        return self.count(draw.FREE, draw.OUTSIDE)

    @property
    def longest_hole(self) -> int:
        """Free slots next to each other."""
        is_free = "".join(
            "." if kind in (draw.FREE, draw.OUTSIDE) else " " for kind, _ in self.slots
        )
        return max(map(len, is_free.split()), default=0)

    def count(self, *kinds: str) -> int:
        return sum(kind in kinds for kind, _ in self.slots)

    @property
    def empty_percent(self) -> int:
        """Of the slots, how many hold no token."""
        return round(100 - 100 * self.count(*TOKENS) / len(self.slots))

    def memory(self, title: str, block_size: int = 0) -> MemoryMap:
        num_wasted = self.count(draw.RESERVED, draw.INSIDE, draw.OUTSIDE)
        caption = (
            f"Step {self.step}, {title}. {self.said} {self.count(*TOKENS)} slots hold a token, "
            f"{num_wasted} are wasted, {self.count(draw.FREE) or 'none'} free.".replace(".  ", ". ")
        )
        return MemoryMap(runs_of(self.slots), title, caption, block_size)


class Contiguous:
    """KV memory in runs: each request's reaches from its first token to the last it may write.
    The first hole that is long enough is taken."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.runs: dict[str, range] = {}

    def holes(self) -> list[range]:
        runs = sorted(self.runs.values(), key=lambda run: run.start)
        starts = [0, *(run.stop for run in runs)]
        stops = [*(run.start for run in runs), self.num_slots]
        return [range(a, b) for a, b in zip(starts, stops) if b > a]

    def reserve(self, name: str, length: int) -> bool:
        hole = next((h for h in self.holes() if len(h) >= length), None)
        if hole is not None:
            self.runs[name] = range(hole.start, hole.start + length)
        return hole is not None

    def free(self, name: str) -> None:
        del self.runs[name]


def serve_contiguous(users: Sequence[Arrival], num_slots: int, num_steps: int) -> list[Moment]:
    """What happens in each step where memory is reserved in runs."""
    memory, log = Contiguous(num_slots), _Log()
    for step in range(num_steps):
        for user in log.ended():
            memory.free(user.name)
        log.write()
        log.said, log.wanted = "", 0
        for user in (u for u in users if u.step == step):
            length = user.num_prompt + user.max_tokens
            fits = memory.reserve(user.name, length)
            holes = [len(hole) for hole in memory.holes()]
            why_not = (
                f"wants {length} slots in a row; {sum(holes)} belong to nobody, and the longest "
                f"hole has {max(holes, default=0)}"
            )
            log.came(user, fits, length, why_not)
        coming = next((u for u in users if u.step >= step and u.name not in log.written), None)
        wanted = log.wanted or (coming.num_prompt + coming.max_tokens if coming else 0)
        slots: list[tuple[str, str]] = [(draw.FREE, "")] * num_slots
        for hole in memory.holes():
            if len(hole) < wanted:
                slots[hole.start : hole.stop] = [(draw.OUTSIDE, "")] * len(hole)
        for name, run in memory.runs.items():
            slots[run.start : run.stop] = log.holds(name, len(run))
        log.take_moment(step, slots)
    return log.moments


def serve_paged(
    users: Sequence[Arrival],
    num_slots: int,
    num_steps: int,
    block_size: int,
    engine: Callable[[str], Any],
) -> list[Moment]:
    """What happens in each step where blocks are handed out as tokens come. engine: a path in the
    engine to what stands there, the reference's or the learner's."""
    slot_mapping = engine("kvcache.block_table.slot_mapping")
    make_request = engine("request.Request")
    kv = engine("kvcache.kv_cache_manager.KVCacheManager")(num_slots // block_size + 1, block_size)
    requests: dict[str, Any] = {}
    log = _Log()
    for step in range(num_steps):
        for user in log.ended():
            kv.free(requests.pop(user.name))
        for user in list(log.running):
            request = requests.get(user.name)
            while request is not None and not _grow(kv, request, 1):
                newest = log.cut_off_newest()
                kv.free(requests.pop(newest.name))
                request = requests.get(user.name)
        log.write()
        log.said, log.wanted = "", 0
        for user in (u for u in users if u.step == step):
            asked = EngineCoreRequest(user.name, (0,) * user.num_prompt,
                                      SamplingParams(max_tokens=user.max_tokens))  # fmt: skip
            request = make_request(asked)
            kv.attach(request, [])
            fits = _grow(kv, request, user.num_prompt)
            if fits:
                requests[user.name] = request
            else:
                kv.free(request)
            why_not = (
                f"has {user.num_prompt} tokens, and {kv.num_free_blocks} blocks of {block_size} "
                f"are free"
            )
            log.came(user, fits, user.num_prompt, why_not)
        slots: list[tuple[str, str]] = [(draw.FREE, "")] * (num_slots // block_size * block_size)
        for name in requests:
            table = kv.tables[name].block_ids
            held = len(table) * block_size
            places = slot_mapping(tuple(table), 0, held, block_size)
            for slot, content in zip(places, log.holds(name, held)):
                slots[slot - block_size] = content
        log.take_moment(step, slots)
    return log.moments


def _grow(kv: Any, request: Any, num_tokens: int) -> bool:
    """Blocks for the next tokens of a request, and the tokens computed."""
    if kv.allocate_slots(request, num_tokens) is None:
        return False
    request.num_computed_tokens += num_tokens
    request.token_ids += [0] * (request.num_computed_tokens + 1 - len(request.token_ids))
    return True


class _Log:
    """Who runs, how much each has written, and the moments so far."""

    def __init__(self) -> None:
        self.users: dict[str, Arrival] = {}
        self.running: list[Arrival] = []  # as they came
        self.written: dict[str, int] = {}  # tokens in memory, prompt and answer; of all who came
        self.served = self.refused = self.cut_off = self.said = ""
        self.wanted = 0
        self.moments: list[Moment] = []

    def ended(self) -> list[Arrival]:
        """Those who have all of their answer; they leave."""
        done = [u for u in self.running if self.written[u.name] >= u.num_prompt + u.num_answer]
        self.running = [u for u in self.running if u not in done]
        return done

    def write(self) -> None:
        for user in self.running:
            self.written[user.name] += 1

    def came(self, user: Arrival, fits: bool, wanted: int, why_not: str) -> None:
        self.users[user.name], self.written[user.name] = user, user.num_prompt
        if fits:
            self.running.append(user)
            self.served += user.name
            self.said += f"{user.name} is let in. "
        else:
            self.refused += user.name
            self.wanted = wanted
            self.said += f"{user.name} is refused: it {why_not}. "

    def cut_off_newest(self) -> Arrival:
        newest = self.running.pop()
        self.served = self.served.replace(newest.name, "")
        self.cut_off += newest.name
        return newest

    def holds(self, name: str, num_slots: int) -> list[tuple[str, str]]:
        """What stands in the slots that a request owns: (kind, owner) of each."""
        user, written = self.users[name], self.written[name]
        ends = {
            draw.PREFILL: user.num_prompt,
            draw.DECODE: written,
            draw.RESERVED: user.num_prompt + user.num_answer,
            draw.INSIDE: num_slots,
        }
        slots: list[tuple[str, str]] = []
        for kind, end in ends.items():
            slots += [(kind, name)] * (min(end, num_slots) - len(slots))
        return slots

    def take_moment(self, step: int, slots: Sequence[tuple[str, str]]) -> None:
        running = "".join(user.name for user in self.running)
        self.moments.append(Moment(step, tuple(slots), running, self.served, self.refused,
                                   self.cut_off, self.said.strip(), self.wanted))  # fmt: skip


def where_it_went(moments: dict[str, Moment], title: str = "", caption: str = "") -> Bars:
    """A bar for each memory: slots with a token, and the three wastes apart."""
    made = []
    for label, moment in moments.items():
        counted = Counter(kind for kind, _ in moment.slots)
        parts = tuple(Part(counted[kind], kind, NAMES[kind]) for kind in NAMES if counted[kind])
        made.append(Bar(label, parts))
    return Bars(tuple(made), "slots", title, caption, digits=0)
