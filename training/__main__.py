"""`python -m training`: write stories, learn from them, write the two models out. Each part goes on
where it stopped; `make models` runs all three."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "training"
BUNDLED = ROOT / "minivllm" / "checkpoint" / "bundled"
MINUTES = 70  # of writing, where neither shards nor minutes are asked for


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument(
        "part",
        nargs="?",
        default="all",
        choices=("all", "stories", "learn", "card"),
        help="stories: smollm2-135m writes; learn: small, then tiny with small as its teacher; "
        "card: checkpoints, loss plot and model card into minivllm/checkpoint/bundled "
        "(default: all)",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        metavar="N",
        help="how long to write stories (default: %(default)s)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=2,
        metavar="N",
        help="writers at once, of one thread each (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        metavar="N",
        help="threads that learn (default: %(default)s)",
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=WORK,
        metavar="FOLDER",
        help="stories and checkpoints of learning (default: build/training)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=BUNDLED,
        metavar="FOLDER",
        help="where the two models go (default: the package's)",
    )
    args = parser.parse_args(argv)
    try:
        if args.part in ("all", "stories"):
            write_stories(args.work / "stories", args.minutes * 60, args.processes)
        if args.part in ("all", "learn"):
            learn_both(args.work, args.threads)
        if args.part in ("all", "card"):
            write_out(args.work, args.out)
    except ValueError as error:
        print(f"training: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def write_stories(folder: Path, seconds: float, processes: int) -> None:
    """Writers side by side, each with shards of its own, until the time is over. Time spent in
    runs before counts, as the shards that they left."""
    from .stories import seconds_spent

    left = seconds - seconds_spent(folder) / processes
    if left <= 0:
        print("stories: enough is written", flush=True)
        return
    code = "import sys; from training.stories import write; write(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(folder), str(time.time() + left)]
    writers = [
        subprocess.Popen([*command, str(number), str(processes)], cwd=ROOT)
        for number in range(processes)
    ]
    try:
        failed = [writer.wait() for writer in writers]
    except BaseException:
        for writer in writers:
            writer.terminate()
        raise
    if any(failed):
        raise ValueError("a writer of stories failed: see above")


def learn_both(work: Path, threads: int) -> None:
    import torch

    from .corpus import Rows, learn_vocabulary, read_stories
    from .learning import LENGTH, RECIPES, learn

    torch.set_num_threads(threads)
    learned, held_out = read_stories(work / "stories")
    tokenizer = learn_vocabulary(learned)
    rows, judged = (Rows(stories, tokenizer, LENGTH) for stories in (learned, held_out))
    print(
        f"{len(learned):,} stories, {rows.num_tokens:,} tokens to learn from; "
        f"{len(held_out):,} stories held out",
        flush=True,
    )
    for name in RECIPES:
        learn(name, rows, judged, work)


def write_out(work: Path, out: Path) -> None:
    from .card import write_card, write_checkpoint
    from .corpus import Rows, learn_vocabulary, read_stories
    from .learning import LENGTH, RECIPES, load, read_record

    learned, held_out = read_stories(work / "stories")
    tokenizer = learn_vocabulary(learned)
    for name in RECIPES:
        write_checkpoint(name, load(name, work), tokenizer, out / name)
    records = {name: read_record(name, work) for name in RECIPES}
    write_card(records, Rows(learned, tokenizer, LENGTH), len(held_out), out)
    print(
        f"written: {', '.join(str(out / name) for name in RECIPES)}, and a model card beside them"
    )


if __name__ == "__main__":
    sys.exit(main())
