"""Grades: every test of every lab, whatever is wrong with a submission.

One submission is judged by one process of its own, so nothing it does can cost another. What is
missing or cannot be read costs the tests that need it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .answers import Source, read_submission
from .children import Children
from .compose import Answer, compose, compose_core, graft
from .holes import strip
from .judge import LAB_S
from .manifest import ENGINE, LABS, ROOT, LabInfo, all_labs, find_lab
from .runner import Judge, Outcome, load_tests, run_lab

PUBLIC_SEEDS = (1,)
VERSION = 1
MEMORY_BYTES = 2 << 30  # of the process that judges


@dataclass
class Mark:
    name: str
    status: str  # passed | failed | unwritten
    points: int
    max_points: int
    is_further: bool = False
    says: str = ""


@dataclass
class LabGrade:
    slug: str
    tests: list[Mark] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # files that could not be used

    def points(self, further: bool = False) -> tuple[int, int]:
        """Points, and the most there could be: of the core tests, or of the further ones."""
        own = [t for t in self.tests if t.is_further is further]
        return sum(t.points for t in own), sum(t.max_points for t in own)


@dataclass
class Report:
    """One learner's grades."""

    learner: str
    digest: str
    level: str = "public"
    labs: list[LabGrade] = field(default_factory=list)
    seconds: float = 0.0

    def points(self, further: bool = False) -> tuple[int, int]:
        each = [lab.points(further) for lab in self.labs]
        return sum(p for p, _ in each), sum(m for _, m in each)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Raises ValueError, TypeError or KeyError for what is no report."""
        data = json.loads(text)
        labs = [
            LabGrade(lab["slug"], [Mark(**t) for t in lab["tests"]], lab["problems"])
            for lab in data.pop("labs")
        ]
        return cls(**data, labs=labs)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"


def usable(
    info: LabInfo, sources: Mapping[str, Source]
) -> tuple[dict[str, list[Answer]], frozenset[str], dict[str, str]]:
    """Answers of what can be used, stubs for the rest; further holes that are not written; and by
    hole, why its answer cannot be used."""
    answers, unwritten, problems = {}, set(), {}
    for file in info.files:
        engine_text = (ENGINE / file).read_text(encoding="utf-8")
        shown = f"{info.folder.name}/{file}"
        good, source = [], sources[file]
        for hole in info.holes_in(file):
            try:
                if isinstance(source, ValueError):
                    raise source
                graft(engine_text, [Answer(source, shown, (hole.name,))])
                good.append(hole.name)
                if hole.further and hole.name not in info.written(source, shown, file):
                    unwritten.add(hole.name)
                    good.remove(hole.name)
            except ValueError as error:
                problems[hole.name] = str(error)
        bad = tuple(h.name for h in info.holes_in(file) if h.name in problems)
        parts = [Answer(source, shown, tuple(good))] if good else []
        parts += [Answer(strip(engine_text, bad, info.slug), "the starter", bad)] if bad else []
        if parts:
            answers[file] = parts
    return answers, frozenset(unwritten), problems


def grade_lab(
    info: LabInfo, sources: Mapping[str, Source], seeds: Sequence[int], children: Children
) -> LabGrade:
    """All tests, with every seed: a test passes if it passes with each."""
    answers, unwritten, problems = usable(info, sources)
    tests = load_tests(info)
    grade = LabGrade(info.slug, problems=sorted(set(problems.values())))
    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        root = Path(folder).resolve()
        composed, core = compose(root, answers), compose_core(info, root, answers)
        judge = Judge(composed, core, children, unwritten=unwritten)
        runs = [list(run_lab(info, judge, seed, tests=tests)) for seed in seeds]
    for test, *outcomes in zip(tests, *runs, strict=True):
        worst = next((o for o in outcomes if not o.passed), outcomes[0])
        explain(worst, problems)
        passed = worst.passed
        grade.tests.append(
            Mark(
                name=worst.test,
                status=worst.status,
                points=worst.points if passed else 0,
                max_points=worst.points,
                is_further=bool(getattr(test, "further", ())),
                says=worst.says,
            )
        )
    return grade


def explain(outcome: Outcome, problems: Mapping[str, str]) -> None:
    """A hole that is a stub only because its file is broken says so."""
    if outcome.is_starter:
        name = outcome.says.partition(" ")[0]
        outcome.says = problems.get(name, outcome.says)


def grade_submission(
    path: Path, learner: str, labs: Sequence[LabInfo], seeds: Sequence[int], level: str
) -> Report:
    """One learner, in this process."""
    started = time.monotonic()
    sources = read_submission(path, labs)
    report = Report(learner, digest_of(sources, seeds), level)
    with Children() as children:
        for info in labs:
            report.labs.append(grade_lab(info, sources[info.slug], seeds, children))
    report.seconds = round(time.monotonic() - started, 2)
    return report


def digest_of(sources: Mapping[str, Mapping[str, Source]], seeds: Sequence[int]) -> str:
    """What a grade depends on: the answers, the seeds, and the course itself."""
    hasher = hashlib.sha256(f"{VERSION} {list(seeds)} {course_digest()}".encode())
    for slug, files in sources.items():
        for file, source in files.items():
            hasher.update(f"\0{slug}\0{file}\0{source}".encode(errors="replace"))
    return hasher.hexdigest()[:16]


def course_digest() -> str:
    hasher = hashlib.sha256()
    for path in sorted([*ENGINE.rglob("*.py"), *LABS.glob("*.py"), *LABS.glob("[0-9]*/*.*")]):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


def grade_apart(
    path: Path, learner: str, labs: Sequence[LabInfo], seeds: Sequence[int], level: str
) -> Report:
    """`grade_submission` in a process of its own. If that ends badly, the report says so and
    gives no points."""
    job = {"path": str(path.resolve()), "learner": learner, "labs": [i.slug for i in labs],
           "seeds": list(seeds), "level": level}  # fmt: skip
    limit = 60 + len(labs) * len(seeds) * 2 * LAB_S
    try:
        done = subprocess.run(
            [sys.executable, "-m", "labs.grading"], input=json.dumps(job), cwd=ROOT,
            capture_output=True, text=True, timeout=limit,
        )  # fmt: skip
        return Report.from_json(done.stdout)
    except (subprocess.TimeoutExpired, ValueError, TypeError, KeyError) as error:
        reason = f"could not be graded: {type(error).__name__}"
        report = Report(learner, "", level)
        for info in labs:
            lab = LabGrade(info.slug, problems=[reason])
            for test in load_tests(info):
                points = info.points.get(test.__name__, 1)
                further = bool(getattr(test, "further", ()))
                lab.tests.append(Mark(test.__name__, "failed", 0, points, further, reason))
            report.labs.append(lab)
        return report


def grade_all(
    paths: Iterable[Path],
    labs: Sequence[LabInfo],
    seeds: Sequence[int],
    level: str,
    folder: Path,  # keeps each learner's report
    jobs: int = 2,
    on_report: Callable[[Report, bool], None] = lambda report, is_new: None,
) -> list[Report]:
    """Grade each submission that is not graded already, `jobs` at once. A report in the folder
    counts if nothing it depends on has changed."""
    folder.mkdir(parents=True, exist_ok=True)

    def one(path: Path) -> Report:
        learner = path.stem if path.is_file() else path.name
        kept = folder / f"{safe_name(path.name)}.json"
        report = kept_report(kept, digest_of(read_submission(path, labs), seeds))
        is_new = report is None
        if is_new:
            report = grade_apart(path, learner, labs, seeds, level)
            kept.write_text(report.to_json(), encoding="utf-8")
        on_report(report, is_new)
        return report

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, paths))


def kept_report(path: Path, digest: str) -> Report | None:
    try:
        report = Report.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return report if report.digest == digest else None


def safe_name(name: str) -> str:
    """A file name that no learner's name can turn into another's or a path."""
    plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)[:60]
    return f"{plain}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


def read_seeds(path: Path) -> tuple[int, ...]:
    """An instructor's seeds: whole numbers, one a line. Raises ValueError naming the line."""
    seeds = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            if not line.strip().isdigit():
                raise ValueError(f"{path}, line {number}: {line!r} is not a seed")
            seeds.append(int(line))
    if not seeds:
        raise ValueError(f"{path} holds no seeds")
    return tuple(seeds)


def limit_memory() -> None:
    """What a submission returns may grow in the judge's hands: then a test fails, not the rest."""
    if sys.platform == "linux":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, most))


def main() -> None:
    """The process that judges one submission: a job on stdin, a report on stdout."""
    limit_memory()
    job = json.load(sys.stdin)
    known = all_labs()
    labs = [find_lab(slug, known) for slug in job["labs"]]
    report = grade_submission(Path(job["path"]), job["learner"], labs, job["seeds"], job["level"])
    sys.stdout.write(report.to_json())


if __name__ == "__main__":
    main()
