"""Who asks what: requests for a simulation or a load test, made from a seed.

Prompts are token ids without meaning. What matters is how long they are, and which of them begin
alike, for that is what a prefix cache lives on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..executor.sim import answer_seed, invented_token
from ..outputs import EngineCoreRequest
from ..sampling_params import SamplingParams
from .arrivals import Length, all_at_once

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """When it comes, what it says, and how long its answer is."""

    request_id: str
    prompt_token_ids: Tokens
    max_tokens: int  # the answer has exactly so many
    arrival_time: float = 0.0  # seconds; behind `after`: since that request's end
    after: str | None = None  # comes when that request has ended, as a chat's next turn does
    tenant: str = ""
    priority: int = 0

    def engine_request(self, arrival_time: float) -> EngineCoreRequest:
        """As the engine takes it. What one tenant's prompts left in the cache, no other finds."""
        return EngineCoreRequest(
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids,
            sampling_params=SamplingParams(
                temperature=0, max_tokens=self.max_tokens, ignore_eos=True
            ),
            arrival_time=arrival_time,
            priority=self.priority,
            extra_key=(self.tenant,) if self.tenant else (),
        )


class Texts:
    """Token ids that nobody has said before: no text of two tokens or more begins like another.
    The rest of a text is cut out of one long list, since to draw each id would take longer than
    to simulate it."""

    def __init__(self, rng: random.Random, vocab_size: int = 32000) -> None:
        self.rng = rng
        self.vocab_size = vocab_size
        self.ids = rng.sample(range(vocab_size), vocab_size)
        self.num_made = 0

    def new(self, num_tokens: int) -> Tokens:
        high, low = divmod(self.num_made, self.vocab_size)
        self.num_made += 1
        start = self.rng.randrange(self.vocab_size)
        while len(self.ids) < start + num_tokens:
            self.ids += self.ids
        return (low, high, *self.ids[start : start + num_tokens])[:num_tokens]


def answer_of(request: WorkloadRequest, vocab_size: int) -> Tokens:
    """What the simulator will say to a request: a chat's next turn repeats it."""
    seed, start = answer_seed(request.request_id), len(request.prompt_token_ids)
    positions = range(start, start + request.max_tokens)
    return tuple(invented_token(seed, position, vocab_size) for position in positions)


def workload_prefixes(
    n: int,
    *,
    prompt_len: Length,
    output_len: Length,
    num_prefixes: int = 0,
    prefix_len: int = 0,
    arrivals: Iterable[float] | None = None,
    seed: int = 0,
) -> list[WorkloadRequest]:
    """n requests of prompt_len tokens, of which the first prefix_len are one of num_prefixes
    texts, drawn evenly; with none, no two prompts begin alike. A prompt is at least one token
    longer than its prefix."""
    rng = random.Random(seed)
    texts = Texts(rng)
    prefixes = [texts.new(prefix_len) for _ in range(num_prefixes)]
    requests = []
    for index, time in zip(range(n), arrivals or all_at_once()):
        prefix = rng.choice(prefixes) if prefixes else ()
        prompt = prefix + texts.new(max(1, prompt_len(rng) - len(prefix)))
        requests.append(WorkloadRequest(f"r{index}", prompt, output_len(rng), time))
    return requests


def workload_rag(
    n: int = 80, docs: int = 4, *, order: str = "fixed", **sizes
) -> list[WorkloadRequest]:
    """n questions, each over the `docs` documents of one of a few topics: system prompt,
    documents, question. order: "fixed"; "scrambled", the parts before the question in another
    order each time; "stamped", a part that is new each time (the hour, a session id) in front."""
    if order not in ("fixed", "scrambled", "stamped"):
        raise ValueError(f"order must be fixed, scrambled or stamped, got {order!r}")
    return list(_rag(n, docs, order, **sizes))


def workload_scrambled(n: int = 80, docs: int = 4, **sizes) -> list[WorkloadRequest]:
    """The same questions over the same documents, which come in another order each time."""
    return workload_rag(n, docs, order="scrambled", **sizes)


def _rag(
    n: int,
    docs: int,
    order: str,
    *,
    num_topics: int = 4,
    system_len: int = 512,
    doc_len: int = 512,
    question_len: int = 64,
    output_len: int = 128,
    arrivals: Iterable[float] | None = None,
    seed: int = 0,
) -> Iterator[WorkloadRequest]:
    rng = random.Random(seed)
    texts = Texts(rng)
    system = texts.new(system_len)
    topics = [[texts.new(doc_len) for _ in range(docs)] for _ in range(num_topics)]
    for index, time in zip(range(n), arrivals or all_at_once()):
        parts = [system, *rng.choice(topics)]
        if order == "scrambled":
            rng.shuffle(parts)
        if order == "stamped":
            parts.insert(0, texts.new(16))
        prompt = sum(parts, ()) + texts.new(question_len)
        yield WorkloadRequest(f"r{index}", prompt, output_len, time)


def workload_chat(
    num_sessions: int,
    num_turns: int,
    *,
    vocab_size: int,
    system_len: int = 512,
    message_len: tuple[int, int] = (20, 120),
    output_len: tuple[int, int] = (100, 300),
    think_s: float = 10.0,
    arrivals: Iterable[float] | None = None,
    seed: int = 0,
) -> list[WorkloadRequest]:
    """Conversations behind one system prompt. Each turn repeats all that was said, and comes
    think_s seconds (on average) after the answer before it. Lengths are drawn evenly between two
    bounds."""
    rng = random.Random(seed)
    texts = Texts(rng)
    system = texts.new(system_len)
    requests = []
    for session, time in zip(range(num_sessions), arrivals or all_at_once()):
        history, after = system, None
        for turn in range(num_turns):
            history += texts.new(rng.randint(*message_len))
            request = WorkloadRequest(
                f"s{session}t{turn}", history, rng.randint(*output_len), time, after=after
            )
            requests.append(request)
            history += answer_of(request, vocab_size)
            after, time = request.request_id, rng.expovariate(1 / think_s)
    return requests


def workload_agents(
    num_tasks: int,
    num_branches: int,
    *,
    vocab_size: int,
    system_len: int = 2000,
    task_len: tuple[int, int] = (200, 1000),
    step_len: tuple[int, int] = (20, 80),
    output_len: tuple[int, int] = (50, 200),
    arrivals: Iterable[float] | None = None,
    seed: int = 0,
) -> list[WorkloadRequest]:
    """Tasks behind one long prompt of instructions and tools. Each first asks for a plan; then
    num_branches calls follow at once, which share all that was said and part in their last
    words."""
    rng = random.Random(seed)
    texts = Texts(rng)
    system = texts.new(system_len)
    requests = []
    for task, time in zip(range(num_tasks), arrivals or all_at_once()):
        plan = WorkloadRequest(
            f"a{task}", system + texts.new(rng.randint(*task_len)), rng.randint(*output_len), time
        )
        past = plan.prompt_token_ids + answer_of(plan, vocab_size)
        requests.append(plan)
        requests += [
            WorkloadRequest(
                f"a{task}b{branch}",
                past + texts.new(rng.randint(*step_len)),
                rng.randint(*output_len),
                after=plan.request_id,
            )
            for branch in range(num_branches)
        ]
    return requests


def with_tenants(
    requests: Sequence[WorkloadRequest], shares: dict[str, float], seed: int = 0
) -> list[WorkloadRequest]:
    """The same requests, each belonging to a tenant drawn by its share of the traffic; those that
    follow another belong to its tenant."""
    rng = random.Random(seed)
    tenants: dict[str, str] = {}
    for request in requests:
        drawn = rng.choices(list(shares), list(shares.values()))[0]
        tenants[request.request_id] = tenants.get(request.after, drawn)
    return [replace(request, tenant=tenants[request.request_id]) for request in requests]


def read_workload(lines: Iterable[str], seed: int = 0) -> list[WorkloadRequest]:
    """Recorded traffic, one JSON object a line: {"arrival_time": seconds, "prompt_tokens": n,
    "output_tokens": n}, and if you like "tenant", "priority", and "prefix": a name, with
    "prefix_tokens": prompts of the same name begin with the same so many tokens. Raises
    ValueError with the line's number."""
    texts, prefixes, requests = Texts(random.Random(seed)), {}, []
    for number, line in enumerate(lines, 1):
        try:
            requests.append(_recorded(_parsed(line), f"r{number - 1}", texts, prefixes))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"line {number} is no request of a workload: {why}") from error
    return requests


def _parsed(line: str) -> dict:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        entry = None
    if not isinstance(entry, dict):
        raise ValueError(f"it is not a JSON object but {line.strip()[:40]!r}")
    return entry


def _recorded(
    entry: dict, request_id: str, texts: Texts, prefixes: dict[str, Tokens]
) -> WorkloadRequest:
    known = {"arrival_time", "prompt_tokens", "output_tokens", "tenant", "priority", "prefix"}
    if unknown := entry.keys() - known - {"prefix_tokens"}:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    num_prompt, num_output = int(entry["prompt_tokens"]), int(entry["output_tokens"])
    num_shared = int(entry.get("prefix_tokens", 0))
    if num_output < 1 or not 0 <= num_shared < num_prompt:
        raise ValueError("output_tokens must be at least 1 and prompt_tokens above prefix_tokens")
    prefix = prefixes.setdefault(entry.get("prefix", ""), texts.new(num_shared))
    if len(prefix) < num_shared:
        raise ValueError(f"prefix {entry.get('prefix')!r} had {len(prefix)} tokens before")
    return WorkloadRequest(
        request_id,
        prefix[:num_shared] + texts.new(num_prompt - num_shared),
        num_output,
        float(entry["arrival_time"]),
        tenant=entry.get("tenant", ""),
        priority=int(entry.get("priority", 0)),
    )
