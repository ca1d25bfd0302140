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
from pathlib import Path

from .peer_workload import HEADLINES, TESTS, score, workload

WORKER = Path(__file__).with_name("peer_engines.py")


class Peer:
    """One engine in a process of its own. What it prints is kept in NAME.stderr."""

    def __init__(self, spec: str, threads: int) -> None:
        self.name, _, rest = spec.partition("=")
        python, engine, model, *options = rest.split(":")
        script = ["-m", f"{__package__}.{WORKER.stem}"] if engine == "minivllm" else [str(WORKER)]
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        with open(f"{self.name}.stderr", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [python, *script, engine, model, str(threads), *options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env,
            )  # fmt: skip
        self.load = self.read()
        self.rss_mib = self.load["rss_mib"]

    def read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise ValueError(f"{self.name} died: see {self.name}.stderr")
        return json.loads(line)

    def ask(self, test: str, repeat: int) -> dict[str, float]:
        requests, shared = workload(test, repeat)
        question = json.dumps({"requests": requests, "shared": shared})
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        answer = self.read()
        self.rss_mib = max(self.rss_mib, answer["rss_mib"])
        return score(test, requests, answer["times"], answer["wall_s"])

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


def wait_quiet(limit: float = 0.3, longest_s: float = 3.0) -> None:
    """Wait until the machine is nearly idle, but not for ever."""
    deadline = time.monotonic() + longest_s
    while time.monotonic() < deadline:
        before = busy_seconds()
        time.sleep(0.4)
        if (busy_seconds() - before) / 0.4 < limit:
            return


def measure(peer: Peer, peers: list[Peer], test: str, repeat: int, args) -> dict[str, float]:
    """One repeat on one engine: its scores, and "foreign", the share of a core others took."""
    pids = [p.process.pid for p in peers]
    for attempt in range(args.retry + 1):
        wait_quiet()
        start, busy, own = time.perf_counter(), busy_seconds(), own_seconds(pids)
        scores = peer.ask(test, repeat + 1000 * attempt)
        others = busy_seconds() - busy - (own_seconds(pids) - own)
        scores["foreign"] = others / (time.perf_counter() - start)
        if repeat < 0 or scores["foreign"] < args.foreign:
            break
    return scores


def run_test(peers: list[Peer], test: str, repeats: int, args) -> dict[str, list[dict]]:
    """All repeats of one test, the engines taking turns at being first."""
    runs = {peer.name: [] for peer in peers}
    for repeat in range(0 if args.no_warm else -1, repeats):  # repeat -1 warms up
        turn = repeat % len(peers)
        for peer in peers[turn:] + peers[:turn]:
            scores = measure(peer, peers, test, repeat, args)
            if repeat >= 0:
                runs[peer.name].append(scores)
                value = scores[HEADLINES[test][0]]
                print(f"  {test} {repeat} {peer.name} {value:.1f}", file=sys.stderr, flush=True)
    return runs


def summary(test: str, name: str, own: list[dict], first: list[dict]) -> str:
    """A line of medians, each with the median of its ratios to the first engine's."""
    cells = [f"{test:10} {name:12}"]
    for key in HEADLINES[test]:
        middle = statistics.median(run[key] for run in own)
        ratio = statistics.median(a[key] / b[key] for a, b in zip(own, first, strict=True))
        cells.append(f"{key} {middle:9.2f} (x{ratio:.2f})")
    cells.append(f"foreign {statistics.median(run['foreign'] for run in own):.2f}")
    return "  ".join(cells)


def compare(args) -> dict:
    """Run all tests on all engines, printing as it goes. Returns, per engine, every repeat."""
    peers = []
    for spec in args.peer:  # one after the other, so that load times are not disturbed
        peers.append(Peer(spec, args.threads))
        print(f"{peers[-1].name:12} load {peers[-1].load['load_s']:.2f} s", flush=True)
    record = {peer.name: {"load_s": peer.load["load_s"]} for peer in peers}
    for wanted in args.tests.split(","):
        test, _, repeats = wanted.partition(":")
        runs = run_test(peers, test, int(repeats or args.repeats), args)
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
        sys.exit(f"peers: {error}")
    if args.json:
        Path(args.json).write_text(json.dumps(record, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
