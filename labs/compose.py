"""Your bodies in a copy of the engine: graft one file, compose a whole package.

A graft takes the engine's file and puts your holes in, by qualified name, with whatever helpers,
imports and methods you added. Everything else is the engine's, so a newer engine and your work
never meet in a merge. Nothing is imported or run here.
"""

from __future__ import annotations

import ast
import os
import py_compile
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .holes import Function, find, first_line, is_stub, parse, split_lines
from .holes import written_holes as written_holes  # for those who ask here
from .manifest import ENGINE, LabInfo

PACKAGE = "mine_minivllm"
CORE_PACKAGE = "mine_minivllm_core"
WEIGHTS = "checkpoint/bundled"  # the models that come with the engine
# By numba, for many seconds, anew in each place where it stands, and for each kind of record.
COMPILED = ("kernels/cpu/decode.py", "kernels/cpu/layer.py")
Line = tuple[str, tuple[str, int] | None]  # text, and where it came from: (answer's path, line)


@dataclass(frozen=True, slots=True)
class Answer:
    """Python text that defines holes: a starter filled in, or only the functions."""

    text: str
    path: str  # as a person should see it
    names: tuple[str, ...]  # the holes to take from it
    elsewhere: tuple[str, ...] = ()  # holes in it that belong to other files


@dataclass
class Graft:
    """An engine file with somebody's bodies in it."""

    text: str
    origin: dict[int, tuple[str, int]]  # line -> (answer's path, its line)
    ignored: list[str] = field(default_factory=list)  # changed, but no hole: the engine's is used


@dataclass
class Composed:
    """A package on disk, and where its lines came from."""

    root: Path  # the folder to import from
    package: str = PACKAGE
    origin: dict[str, dict[int, tuple[str, int]]] = field(default_factory=dict)  # by file
    ignored: list[str] = field(default_factory=list)

    def where(self, filename: str, line: int) -> tuple[str, int] | None:
        """The place that a person wrote or may read, for a place in the copy; None elsewhere."""
        try:
            file = Path(filename).relative_to(self.root / self.package).as_posix()
        except ValueError:
            return None
        return self.origin.get(file, {}).get(line, (f"minivllm/{file}", line))


def graft(engine_text: str, answers: Sequence[Answer]) -> Graft:
    """The engine's text with the answers' holes and additions.

    Raises ValueError, saying where, if an answer is not Python, lacks a hole, or changes a hole's
    signature, decorators or indentation.
    """
    engine = parse(engine_text, "the engine")
    edits = []  # (start, end, new lines): they stand for the engine's lines[start:end]
    ignored = []
    for answer in answers:
        try:
            found, changed = edits_of(engine, answer)
        except RecursionError as error:
            raise ValueError(f"{answer.path} is nested too deeply") from error
        edits += found
        ignored += changed
    lines = list[Line]()
    done, old = 0, [(line, None) for line in split_lines(engine_text)]
    for start, end, new in sorted(edits, key=lambda e: e[:2]):
        lines += old[done:start] + new
        done = max(done, end)
    lines += old[done:]
    origin = {number: place for number, (_, place) in enumerate(lines, 1) if place}
    return Graft("".join(line for line, _ in lines), origin, ignored)


def edits_of(
    engine: ast.Module, answer: Answer
) -> tuple[list[tuple[int, int, list[Line]]], list[str]]:
    """What an answer changes in the engine's file, and what it changed in vain."""
    tree = parse(answer.text, answer.path)
    source, edits = split_lines(answer.text), []

    def taken(node: ast.stmt) -> list[Line]:
        span = range(first_line(node), node.end_lineno + 1)
        return [(source[n - 1], (answer.path, n)) for n in span]

    for name in answer.names:
        old, new = find(engine, name), find(tree, name)
        check_hole(name, old, new, answer.path)
        edits.append((first_line(old) - 1, old.end_lineno, taken(new)))
    away = {name.partition(".")[0] for name in answer.elsewhere}
    own = [n for n in tree.body if name_of(n) not in away]
    for place, node in additions(engine, ast.Module(own, []), answer.names):
        edits.append((place, place, taken(node)))
    return edits, changed_elsewhere(engine, tree, answer.names)


def check_hole(name: str, old: Function | None, new: Function | None, path: str) -> None:
    """Raises ValueError if `new` cannot stand where `old` stands."""
    if old is None:
        raise ValueError(f"the engine has no {name}")
    if new is None:
        raise ValueError(f"{path} has no {name}: the lab needs a function of this name")
    if signature(old) != signature(new):
        raise ValueError(
            f"{path}, line {new.lineno}: {name} must keep its signature\n"
            f"  yours         {written(new)}\n  the engine's  {written(old)}"
        )
    if old.col_offset != new.col_offset:
        raise ValueError(f"{path}, line {new.lineno}: indent {name} by {old.col_offset} spaces")


def signature(node: Function) -> str:
    """What callers see, without annotations."""
    bare = ast.parse(ast.unparse(node.args).join(("def f(", "): ..."))).body[0]
    for argument in ast.walk(bare.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    decorators = [ast.unparse(d) for d in node.decorator_list]
    return f"{type(node).__name__} {decorators} {ast.unparse(bare.args)}"


def written(node: Function) -> str:
    """A signature as `signature` compares it, for a person."""
    return f"{node.name}({signature(node).partition('] ')[2]})"


def additions(
    engine: ast.Module, tree: ast.Module, holes: Sequence[str]
) -> list[tuple[int, ast.stmt]]:
    """New statements of the answer, each with the engine's line that it comes after."""
    found = new_statements(engine.body, tree.body, last_import(engine))
    for class_name in dict.fromkeys(name.partition(".")[0] for name in holes if "." in name):
        old = next(n for n in engine.body if name_of(n) == class_name)
        new = [n for n in tree.body if name_of(n) == class_name][-1]
        found += new_statements(old.body, new.body, old.end_lineno)
    return found


def new_statements(
    old: Sequence[ast.stmt], new: Sequence[ast.stmt], place: int
) -> list[tuple[int, ast.stmt]]:
    """Those of `new` that `old` has not, each to stand after the statement it stands after."""
    by_name = {name_of(n): n for n in old if name_of(n)}
    by_text = {ast.dump(n): n for n in old if not name_of(n)}
    found = []
    for node in new:
        same = by_name.get(name_of(node)) if name_of(node) else by_text.get(ast.dump(node))
        if same is not None:
            place = same.end_lineno
        elif not is_remark(node):
            found.append((place, node))
    return found


def name_of(node: ast.stmt) -> str | None:
    return node.name if isinstance(node, Function | ast.ClassDef) else None


def is_remark(node: ast.stmt) -> bool:
    """A docstring, `...`, or the import that must stand at the very top (the engine has it)."""
    is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    return is_future or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def last_import(tree: ast.Module) -> int:
    imports = [n.end_lineno for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    return max(imports, default=tree.body[0].end_lineno if is_remark(tree.body[0]) else 0)


def changed_elsewhere(engine: ast.Module, tree: ast.Module, holes: Sequence[str]) -> list[str]:
    """Functions that the answer changed although they are no holes."""
    return [
        name
        for name, node in functions(tree)
        if name not in holes
        and not is_stub(node)
        and (old := find(engine, name)) is not None
        and ast.dump(old) != ast.dump(node)
    ]


def functions(tree: ast.Module) -> list[tuple[str, Function]]:
    """Every function and method, by qualified name."""
    found = [(n.name, n) for n in tree.body if isinstance(n, Function)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found += [(f"{node.name}.{n.name}", n) for n in node.body if isinstance(n, Function)]
    return found


def answers_of(info: LabInfo, text: str, path: str) -> dict[str, list[Answer]]:
    """One text that defines holes of several files, as in a lab's `right` and `wrong`: which of
    it belongs where."""
    there = {name for name, _ in functions(parse(text, path))}
    answers = {}
    for file in info.files:
        names = tuple(h.name for h in info.holes_in(file) if h.name in there)
        elsewhere = tuple(h.name for h in info.holes if h.file != file)
        if names:
            answers[file] = [Answer(text, path, names, elsewhere)]
    return answers


def compose(
    target: Path,
    answers: Mapping[str, Sequence[Answer]],  # by engine file
    engine: Path = ENGINE,
    package: str = PACKAGE,
    lend_compiled: bool = False,
    whole: bool = False,
) -> Composed:
    """Write a copy of the engine, with the answers in it, into target/package. The originals of
    the grafted files are not in the copy, in no form. lend_compiled: the copy takes the engine's
    own compiled loops, for where the engine may be imported. whole: without links to the engine's
    folders. Raises ValueError as `graft` does."""
    grafts = {
        file: graft((engine / file).read_text(encoding="utf-8"), own)
        for file, own in answers.items()
    }
    lent = COMPILED if lend_compiled and not set(COMPILED) & set(grafts) else ()
    copy_engine(engine, target / package, {*grafts, *lent}, whole)
    composed = Composed(target, package)
    for file in lent:
        lender = f"minivllm.{file.removesuffix('.py').replace('/', '.')}"
        (target / package / file).write_text(f"from {lender} import *\n", encoding="utf-8")
    for file, made in grafts.items():
        path = target / package / file
        path.write_text(made.text, encoding="utf-8")
        # Compiled here once, not in each process that imports it. What cannot be is told there.
        py_compile.compile(str(path), quiet=2)
        composed.origin[file] = made.origin
        composed.ignored += [f"{file}: {name}" for name in made.ignored]
    return composed


def compose_core(
    info: LabInfo, target: Path, answers: Mapping[str, Sequence[Answer]]
) -> Composed | None:
    """The engine without the answers' further holes, for the core tests: further work, half done,
    costs nothing there. None if the answers hold no further holes."""
    late = {hole.name for hole in info.holes if hole.further}
    core, is_same = {}, True
    for file, own in answers.items():
        kept = [replace(a, names=tuple(n for n in a.names if n not in late)) for a in own]
        is_same = is_same and kept == list(own)
        core[file] = [a for a in kept if a.names]
    if is_same:
        return None
    return compose(target, {file: own for file, own in core.items() if own}, package=CORE_PACKAGE)


def copy_engine(engine: Path, target: Path, leave_out: set[str], whole: bool = False) -> None:
    """Copy the package with its compiled files, which makes the copy as quick to import, but
    without the named files and what was compiled of them. A folder with none of these is a link to
    the engine's, which takes no time; whole: only that of the models, megabytes, is."""

    def take(folder: Path) -> None:
        (target / folder).mkdir(parents=True)
        for path in (engine / folder).iterdir():
            inside = folder / path.name
            if not path.is_dir():
                if inside.as_posix() not in leave_out:
                    shutil.copy2(path, target / inside)
            elif path.name == "__pycache__":
                take_compiled(folder)
            elif any(Path(file).is_relative_to(inside) for file in leave_out) or (
                whole and inside != Path(WEIGHTS)
            ):
                take(inside)
            else:
                link(path, target / inside)

    def take_compiled(folder: Path) -> None:
        (target / folder / "__pycache__").mkdir()
        for path in (engine / folder / "__pycache__").glob("*.pyc"):
            source = folder / f"{path.name.partition('.')[0]}.py"
            if source.as_posix() not in leave_out:
                shutil.copy2(path, target / folder / "__pycache__")

    take(Path())


def link(source: Path, target: Path) -> None:
    try:
        os.symlink(source.resolve(), target, target_is_directory=True)
    except OSError:  # where links are a privilege
        shutil.copytree(source, target)
