"""Grades as people read them, and as other programs want them: CSV, JUnit XML, Gradescope. All
from the same reports."""

from __future__ import annotations

import csv
import io
import json
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence

from .grading import Mark, Report
from .report import printable


def lines_of(report: Report) -> Iterator[str]:
    """A report as its learner may read it. What a learner wrote cannot look like a line of it."""
    points, most = report.points()
    yield f"{printable(report.learner)}: {points} of {most} points"
    for lab in report.labs:
        points, most = lab.points()
        further, most_further = lab.points(further=True)
        extra = f", further {further} of {most_further}" if most_further else ""
        yield f"\n{lab.slug}: {worded(report.level)} {points} of {most}{extra}"
        for problem in lab.problems:
            yield "  note: " + textwrap.indent(problem, " " * 8).lstrip()
        for test in lab.tests:
            yield f"  {test.status:<9} {test.name.replace('_', ' ')}"
            if test.status == "failed":
                yield textwrap.indent(test.says, " " * 12)


def worded(level: str) -> str:
    return "public tests" if level == "public" else "public and instructor tests"


def to_csv(reports: Sequence[Report]) -> str:
    """A row a learner: all points, then each lab's, with the most there could be beside them."""
    slugs = [lab.slug for lab in reports[0].labs] if reports else []
    heading = ["learner", "level", "points", "max_points", "further_points"]
    for slug in slugs:
        heading += [slug, f"{slug}_max", f"{slug}_further"]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*heading, "notes"])
    for report in reports:
        points, most = report.points()
        row = [as_cell(report.learner), report.level, points, most, report.points(True)[0]]
        for lab in report.labs:
            row += [*lab.points(), lab.points(True)[0]]
        notes = "; ".join(problem for lab in report.labs for problem in lab.problems)
        writer.writerow([*row, as_cell(notes)])
    return out.getvalue()


def as_cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    text = " ".join(text.split())
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def to_junit(reports: Sequence[Report]) -> str:
    root = ET.Element("testsuites")
    for report in reports:
        for lab in report.labs:
            failed = sum(t.status == "failed" for t in lab.tests)
            skipped = sum(t.status == "unwritten" for t in lab.tests)
            suite = ET.SubElement(
                root, "testsuite", name=xml_text(f"{report.learner}.{lab.slug}"),
                tests=str(len(lab.tests)), failures=str(failed), skipped=str(skipped), errors="0",
            )  # fmt: skip
            for test in lab.tests:
                case = ET.SubElement(
                    suite, "testcase", classname=xml_text(f"{report.learner}.{lab.slug}"),
                    name=test.name,
                )  # fmt: skip
                if test.status != "passed":
                    tag = "failure" if test.status == "failed" else "skipped"
                    ET.SubElement(case, tag, message=xml_text(test.says))
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def xml_text(text: str) -> str:
    """Without the characters that XML forbids."""
    return "".join(c if c in "\t\n" or c.isprintable() else "?" for c in text)


def to_gradescope(report: Report) -> str:
    """results.json as Gradescope's autograder specification describes it. The total is the sum
    of the tests' scores; further work is shown and carries none."""
    tests = [gradescope_test(lab.slug, test) for lab in report.labs for test in lab.tests]
    data = {
        "output": f"{worded(report.level)}; further work is shown without points",
        "output_format": "text",
        "stdout_visibility": "hidden",
        "execution_time": report.seconds,
        "tests": tests,
    }
    return json.dumps(data, indent=1) + "\n"


def gradescope_test(slug: str, test: Mark) -> dict:
    entry = {
        "name": f"{slug}: {test.name.removeprefix('test_').replace('_', ' ')}",
        "status": "passed" if test.status == "passed" else "failed",
        "output": test.says,
        "output_format": "text",
        "visibility": "visible",
    }
    if test.is_further:
        return {**entry, "tags": ["further"]}
    return {**entry, "score": test.points, "max_score": test.max_points}
