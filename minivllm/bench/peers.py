"""Measure engines on one fixed workload, alone or side by side, and print their ratios.

usage, NAME=PYTHON:ENGINE:MODEL[:option=value ...] once for each engine:
    python -m minivllm.bench.peers --tests decode,batch32 --json OUT \\
        --peer ours=PYTHON:minivllm:smollm2-135m:dtype=float32 \\
        --peer hf=PYTHON:hf:FOLDER:dtype=float32
    ENGINE is minivllm, hf (transformers), vllm or llamacpp, PYTHON that of its environment.

Each engine is loaded in a process of its own, and the processes take turns, test by test and
repeat by repeat, so that each repeat sees all of them within seconds of one another. Ratios are to
the first. A repeat during which other processes took more than --foreign of a core is done again
(up to --retry times), since with as many threads as cores one competing process stalls each
barrier. Linux only: the share of others is read from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .peer_engines import ENGINES
from .peer_workload import HEADLINES, TESTS, score, workload

WORKER = Path(__file__).with_name("peer_engines.py")
Requests = list[tuple[list[int], int]]
Scores = dict[str, float]
Ask = Callable[["Peer", int], Scores]  # whom, which repeat
Tell = Callable[[str, int, Scores], object]


@dataclass(frozen=True, slots=True)
class Rules:
    """When a repeat counts."""

    foreign: float = 0.1  # share of a core that others may take
    retry: int = 1  # how often it is done again where they took more
    warm: bool = True  # a repeat before the first, which is thrown away


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """Which engine, and in which environment. options: as the engine in peer_engines.py takes
    them."""

    name: str
    python: str
    engine: str
    model: str
    options: Mapping[str, object] = field(default_factory=dict)


def parse_spec(text: str) -> PeerSpec:
    """NAME=PYTHON:ENGINE:MODEL[:option=value ...]. Raises ValueError that says so."""
    name, _, rest = text.partition("=")
    python, engine, model, *options = [*rest.split(":"), "", ""]
    if engine not in ENGINES:
        raise ValueError(f"{text!r}: the engine must be one of {', '.join(ENGINES)}")
    options = dict(o.partition("=")[::2] for o in options if o)
    return PeerSpec(name, python, engine, model, options)


class Peer:
    """One engine in a process of its own. What it prints is kept in folder/NAME.stderr. Raises
    ValueError, with its last words, where it does not start."""

    def __init__(self, spec: PeerSpec, threads: int, folder: str | Path = ".") -> None:
        self.name, self.log = spec.name, Path(folder) / f"{spec.name}.stderr"
        module = ["-m", f"{__package__}.{WORKER.stem}"]
        script = module if spec.engine == "minivllm" else [str(WORKER)]
        options = [f"{name}={value}" for name, value in spec.options.items()]
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        env = {**os.environ, **dict.fromkeys(names, str(threads))}
        command = [spec.python, *script, spec.engine, spec.model, str(threads), *options]
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                env=env,
            )  # fmt: skip
        self.load = self.read()
        self.rss_mib = self.load["rss_mib"]

    def read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            said = self.log.read_text(encoding="utf-8", errors="replace").strip()
            last = said.rpartition("\n")[2] or "it said nothing"
            raise ValueError(f"{self.name} died: {last}")
        return json.loads(line)

    def ask(self, requests: Requests, shared: int) -> dict:
        """Serve the requests, of which the first `shared` ids are the same: `times`, by request,
        and `wall_s`."""
        self.process.stdin.write(json.dumps({"requests": requests, "shared": shared}) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        self.rss_mib = max(self.rss_mib, answer["rss_mib"])
        return answer

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)


def busy_seconds() -> float:
    """Seconds that all cores together have not been idle."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(x) for x in stat.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds(pids: list[int]) -> float:
    """Seconds of processor that these processes have had."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def foreign_seconds(peers: list[Peer]) -> float:
    """Seconds of processor that others than these have had; 0 where nobody counts them."""
    if not Path("/proc/stat").exists():
        return 0.0
    return busy_seconds() - own_seconds([p.process.pid for p in peers])


def wait_quiet(limit: float = 0.3, longest_s: float = 3.0) -> None:
    """Wait until the machine is nearly idle, but not for ever."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline and Path("/proc/stat").exists():
        before = busy_seconds()
        time.sleep(0.4)
        if (busy_seconds() - before) / 0.4 < limit:
            return


def measure(peer: Peer, peers: list[Peer], ask: Ask, repeat: int, rules: Rules) -> Scores:
    """One repeat on one engine: its scores, and "foreign", the share of a core others took."""
    for attempt in range(rules.retry + 1):
        wait_quiet()
        start, before = time.perf_counter(), foreign_seconds(peers)
        scores = ask(peer, repeat + 1000 * attempt)
        scores["foreign"] = (foreign_seconds(peers) - before) / (time.perf_counter() - start)
        if repeat < 0 or scores["foreign"] < rules.foreign:
            break
    return scores


def take_turns(
    peers: list[Peer], ask: Ask, repeats: int, rules: Rules, tell: Tell = lambda *said: None
) -> dict[str, list[Scores]]:
    """All repeats of one question, by engine. The engines take turns at being first. tell: called
    after each with the engine's name, the repeat and the scores."""
    runs = {peer.name: [] for peer in peers}
    for repeat in range(-1 if rules.warm else 0, repeats):  # repeat -1 warms up
        turn = repeat % len(peers)
        for peer in peers[turn:] + peers[:turn]:
            scores = measure(peer, peers, ask, repeat, rules)
            if repeat >= 0:
                runs[peer.name].append(scores)
                tell(peer.name, repeat, scores)
    return runs


def ratio(own: list[Scores], first: list[Scores], key: str) -> float:
    """The median over the repeats of one engine's score over the other's."""
    return statistics.median(a[key] / b[key] for a, b in zip(own, first, strict=True))


def run_test(peers: list[Peer], test: str, repeats: int, rules: Rules) -> dict[str, list[Scores]]:
    """All repeats of one of the fixed tests, said on stderr as they end."""

    def ask(peer: Peer, repeat: int) -> Scores:
        requests, shared = workload(test, repeat)
        answer = peer.ask(requests, shared)
        return score(test, requests, answer["times"], answer["wall_s"])

    def tell(name: str, repeat: int, scores: Scores) -> None:
        value = scores[HEADLINES[test][0]]
        print(f"  {test} {repeat} {name} {value:.1f}", file=sys.stderr, flush=True)

    return take_turns(peers, ask, repeats, rules, tell)


def summary(test: str, name: str, own: list[dict], first: list[dict]) -> str:
    """A line of medians, each with the median of its ratios to the first engine's."""
    cells = [f"{test:10} {name:12}"]
    for key in HEADLINES[test]:
        middle = statistics.median(run[key] for run in own)
        cells.append(f"{key} {middle:9.2f} (x{ratio(own, first, key):.2f})")
    cells.append(f"foreign {statistics.median(run['foreign'] for run in own):.2f}")
    return "  ".join(cells)


def compare(args) -> dict:
    """Run all tests on all engines, printing as it goes. Returns, per engine, every repeat."""
    peers = []
    for text in args.peer:  # one after the other, so that load times are not disturbed
        peers.append(Peer(parse_spec(text), args.threads))
        print(f"{peers[-1].name:12} load {peers[-1].load['load_s']:.2f} s", flush=True)
    record = {peer.name: {"load_s": peer.load["load_s"]} for peer in peers}
    rules = Rules(args.foreign, args.retry, not args.no_warm)
    for wanted in args.tests.split(","):
        test, _, repeats = wanted.partition(":")
        runs = run_test(peers, test, int(repeats or args.repeats), rules)
        for peer in peers:
            record[peer.name][test] = runs[peer.name]
            print(summary(test, peer.name, runs[peer.name], runs[peers[0].name]), flush=True)
    for peer in peers:
        peer.close()
        record[peer.name]["peak_rss_mib"] = peer.rss_mib
        print(f"peak RSS   {peer.name:12} {peer.rss_mib:.0f} MiB")
    return record


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", action="append", required=True, metavar="NAME=PYTHON:ENGINE:...")
    parser.add_argument("--tests", default=",".join(TESTS), help="TEST:N overrides --repeats")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-warm", action="store_true", help="no repeat to warm up")
    parser.add_argument(
        "--foreign", type=float, default=0.1, help="share of a core others may take"
    )
    parser.add_argument("--retry", type=int, default=1)
    parser.add_argument("--json", help="where to write every repeat's scores")
    args = parser.parse_args()
    try:
        record = compare(args)
    except ValueError as error:
        sys.exit(f"peers: {error} (what an engine prints is in NAME.stderr)")
    if args.json:
        Path(args.json).write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
