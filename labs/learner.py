"""What a learner does with a lab: start it, check it, start over, keep it through an update."""

from __future__ import annotations

import difflib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .answers import read_text
from .browser import importable
from .children import Children
from .compose import Answer, Composed, compose, compose_core, graft
from .holes import find, first_line, parse
from .manifest import ENGINE, LABS, ROOT, LabInfo, all_labs
from .progress import Progress, digest, stamp, today
from .runner import Judge, Outcome, run_lab

MINE = LABS / "mine"

AGENTS = """\
# For AI assistants that work in this folder

The person here is learning how LLM serving engines work, by writing these functions themselves.
Be their tutor, not their ghostwriter:

* Do not write or complete the body of a function that raises NotImplementedError, and do not
  paste it from minivllm/, from labs/*/right or from anywhere else.
* Ask what they expect to happen, and let them try it: python -m labs check
* Point to the docstring (it is the whole contract), to the lab's README and to the printed story
  or picture. Explain an idea with another example than the one that is asked for.
* Read their code when they ask, and say in which case it goes wrong, not how to write it.
* `python -m labs hint` gives the next of three hints; `python -m labs diff --give-up` shows the
  reference when they decide to see it.
"""


class Learner:
    """One learner's folder of labs."""

    def __init__(self, mine: Path = MINE, say: Callable[[str], None] = print) -> None:
        self.mine = mine
        self.say = say
        self.labs = all_labs()
        self.progress = Progress(mine)

    # Files.

    def path(self, info: LabInfo, file: str) -> Path:
        return self.mine / info.folder.name / file

    def shown(self, path: Path) -> str:
        """A path as a person types it."""
        return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)

    def has_started(self, info: LabInfo) -> bool:
        return any(self.path(info, file).exists() for file in info.files)

    def read(self, info: LabInfo, file: str) -> str:
        """A file of answers. Raises ValueError for what is no readable text file."""
        return read_text(self.path(info, file), self.shown(self.path(info, file)))

    def answers(self, info: LabInfo, include: Callable[[str], bool] = lambda name: True):
        """The learner's holes by engine file, without further ones that are not written yet, and
        those. Raises ValueError as `read` does."""
        answers, unwritten = {}, set()
        for file in info.files:
            text, shown = self.read(info, file), self.shown(self.path(info, file))
            holes = info.holes_in(file)
            done = info.written(text, shown, file)
            late = {h.name for h in holes if h.further and h.name not in done}
            unwritten |= late
            names = tuple(h.name for h in holes if h.name not in late and include(h.name))
            if names:
                answers[file] = [Answer(text, shown, names)]
        return answers, frozenset(unwritten)

    def starter(self, info: LabInfo, file: str) -> str:
        """The engine's file with this lab's bodies out, and bodies of passed labs in."""
        text = (ENGINE / file).read_text(encoding="utf-8")
        text = info.starter(text, file)
        earlier = [lab for lab in self.labs if lab.slug != info.slug and file in lab.files]
        answers = [a for lab in earlier for a in self.passed_answers(lab).get(file, [])]
        return graft(text, answers).text if answers else text

    def passed_answers(self, info: LabInfo) -> dict[str, list[Answer]]:
        """The holes of a lab that passed and whose files are as they were then."""
        entry = self.progress[info.slug]
        if not entry.passed or not self.is_as_passed(info):
            return {}
        core = {h.name for h in info.holes if not h.further}
        return self.answers(info, lambda name: name in core or name in entry.further)[0]

    def is_as_passed(self, info: LabInfo) -> bool:
        try:
            texts = [self.read(info, file) for file in info.files]
        except ValueError:
            return False
        return digest(texts) == self.progress[info.slug].digest

    # Commands. Each returns whether it did what was asked.

    def start(self, info: LabInfo) -> bool:
        """Write the starter; what is there already stays."""
        new = [file for file in info.files if not self.path(info, file).exists()]
        if not new:
            self.say(f"{info.slug} is started already; your files stay as they are.")
        for file in new:
            self.write(self.path(info, file), self.starter(info, file))
        guard = self.mine / "AGENTS.md"
        if not guard.exists():
            self.write(guard, AGENTS)
        entry = self.progress[info.slug]
        entry.started, entry.skipped = entry.started or today(), False
        self.progress.save()
        self.say(f"Lab {info.number:02}: {info.title}, about {info.minutes} minutes.\n")
        self.say(f"  1. read   {self.shown(info.folder / 'README.md')}")
        self.say("  2. write  the bodies that are missing:")
        for place, name, kind in self.places(info):
            self.say(
                f"       {name}{kind}\n         {self.shown(self.mine / info.folder.name)}/{place}"
            )
        self.say(f"  3. run    python -m labs check {info.slug}")
        return bool(new)

    def places(self, info: LabInfo) -> Iterator[tuple[str, str, str]]:
        """Where the holes are: file:line, name, and whether it is further work."""
        for hole in info.holes:
            text = self.read(info, hole.file)
            node = find(parse(text, hole.file), hole.name)
            line = first_line(node) if node else 1
            kind = "  (further)" if hole.further else ""
            yield (
                f"{hole.file}:{line}",
                hole.name,
                "  (a hunt)" if hole.name in info.hunts else kind,
            )

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    @contextmanager
    def judge(self, info: LabInfo, direct: bool = False) -> Iterator[Judge]:
        """The learner's engine, composed, and a judge for it. Raises ValueError if it cannot be
        composed. direct: in this process, for a debugger."""
        answers, unwritten = self.answers(info)
        holes = {f"{hole.file}: {hole.name}" for hole in info.holes}
        with composed(info, answers) as (engine, core):
            for name in set(engine.ignored) - holes:
                self.say(f"note: you changed {name}, which is not part of this lab.")
                self.say("      The engine's own is used instead.")
            if direct:
                with importable(engine.root):
                    yield Judge(engine, core, unwritten=unwritten)
                return
            with Children() as children:
                yield Judge(engine, core, children, unwritten=unwritten)

    def check(
        self,
        info: LabInfo,
        seed: int | None = None,
        direct: bool = False,
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    ) -> tuple[list[Outcome], int]:
        """Run the tests up to the first that fails, and record what came of it."""
        seed = random.randrange(10_000) if seed is None else seed
        texts = [self.read(info, file) for file in info.files]
        outcomes = []
        with self.judge(info, direct) as judge:
            for outcome in run_lab(info, judge, seed, stop_at_first=True):
                outcomes.append(outcome)
                on_outcome(outcome)
        self.record(info, outcomes, judge.unwritten, digest(texts))
        return outcomes, seed

    def record(
        self, info: LabInfo, outcomes: list[Outcome], unwritten: frozenset[str], done: str
    ) -> None:
        entry = self.progress[info.slug]
        entry.started = entry.started or today()
        failed = failures(outcomes)
        entry.failing = failed[0].test if failed else ""
        entry.num_passing = sum(o.passed for o in outcomes)
        if all(o.further for o in failed):
            entry.passed, entry.digest = entry.passed or today(), done
            undone = unwritten.union(*(o.further for o in outcomes if not o.passed))
            entry.further = [h.name for h in info.holes if h.further and h.name not in undone]
        self.progress.save()

    def next_hint(self, info: LabInfo) -> tuple[int, int, str] | None:
        """One more hint for the test that failed last; the last one again when there are no
        more."""
        entry = self.progress[info.slug]
        hints = info.hints.get(entry.failing, [])
        if not hints:
            return None
        number = min(entry.hints.get(entry.failing, 0) + 1, len(hints))
        entry.hints[entry.failing] = number
        self.progress.save()
        return number, len(hints), hints[number - 1]

    def reset(self, info: LabInfo) -> Path | None:
        """Start over: the files move to a backup, the record that it was passed stays."""
        folder = self.mine / info.folder.name
        if not folder.exists():
            return None
        kept = self.mine / "backup" / f"{info.folder.name}-{stamp()}"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, kept)
        entry = self.progress[info.slug]
        entry.failing, entry.num_passing, entry.hints = "", 0, {}
        for file in info.files:
            self.write(self.path(info, file), self.starter(info, file))
        self.progress.save()
        return kept

    def skip(self, info: LabInfo) -> None:
        self.progress[info.slug].skipped = True
        self.progress.save()

    def update(self) -> bool:
        """Put the learner's bodies into the engine's present files. The old files go to the
        backup. False if one could not be brought over; that one stays as it is."""
        complete, folder = True, self.mine / "backup" / f"update-{stamp()}"
        for info in filter(self.has_started, self.labs):
            was_passed = self.is_as_passed(info)
            for file in info.files:
                path = self.path(info, file)
                try:
                    old = self.read(info, file)
                    done = tuple(info.written(old, self.shown(path), file))
                    new = graft(
                        self.starter(info, file), [Answer(old, self.shown(path), done)]
                    ).text
                except ValueError as error:
                    self.say(f"{self.shown(path)} stays as it is:\n  {error}")
                    complete = False
                    continue
                if new != old:
                    self.write(folder / info.folder.name / file, old)
                    self.write(path, new)
                    self.say(f"{self.shown(path)} is up to date; your bodies are in it")
            if was_passed:
                texts = [self.read(info, file) for file in info.files]
                self.progress[info.slug].digest = digest(texts)
        self.progress.save()
        return complete

    def diff(self, info: LabInfo) -> str:
        """The learner's holes beside the reference's, as a unified diff."""
        parts = []
        for hole in info.holes:
            theirs = function_text((ENGINE / hole.file).read_text(encoding="utf-8"), hole.name)
            mine = function_text(self.read(info, hole.file), hole.name)
            lines = difflib.unified_diff(
                mine, theirs, f"yours: {hole.name}", f"reference: {hole.name}", lineterm="", n=99
            )
            parts.append("\n".join(lines) or f"{hole.name}: the same, letter for letter")
        return "\n\n".join(parts)

    def compose_mine(self, target: Path) -> tuple[Composed, list[str]]:
        """The engine with the bodies of all passed labs, and their names. Raises ValueError if
        no lab is passed."""
        answers: dict[str, list[Answer]] = {}
        for info in self.labs:
            if self.progress[info.slug].passed and not self.is_as_passed(info):
                self.say(f"note: {info.slug} changed since it passed: check it again.")
                self.say("      Until then the reference stands in for it.")
            for file, own in self.passed_answers(info).items():
                answers.setdefault(file, []).extend(own)
        if not answers:
            raise ValueError("nothing is passed yet, so there is nothing of yours to run")
        names = [name for own in answers.values() for answer in own for name in answer.names]
        return compose(target, answers, lend_compiled=True), names


def failures(outcomes: list[Outcome]) -> list[Outcome]:
    """What failed; the core's before further work."""
    failed = [o for o in outcomes if o.status == "failed"]
    return sorted(failed, key=lambda o: bool(o.further))


def function_text(text: str, name: str) -> list[str]:
    node = find(parse(text, name), name)
    return text.split("\n")[first_line(node) - 1 : node.end_lineno] if node else []


@contextmanager
def composed(
    info: LabInfo, answers: dict[str, list[Answer]]
) -> Iterator[tuple[Composed, Composed | None]]:
    """The engine, and the one for core tests, in a folder of their own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        root = Path(folder).resolve()
        yield compose(root, answers), compose_core(info, root, answers)
