"""A hole is a function of the engine whose body is left for you to write.

Finds functions by qualified name and removes bodies. Text in, text out: nothing is imported or
run, and whatever stays, stays byte for byte.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Hole:
    """One function: "minivllm/kvcache/block_pool.py::BlockPool.allocate" in a manifest."""

    file: str  # from the package's folder: "kvcache/block_pool.py"
    name: str  # "BlockPool.allocate"
    further: bool = False  # not needed to pass

    @classmethod
    def parse(cls, text: str, further: bool = False) -> Hole:
        path, _, name = text.partition("::")
        package, _, file = path.partition("/")
        if package != "minivllm" or not file.endswith(".py") or not name:
            raise ValueError(f"{text!r} does not name a hole: minivllm/FILE.py::FUNCTION")
        return cls(file, name, further)


def parse(text: str, path: str) -> ast.Module:
    """The syntax tree. Raises ValueError, with file and line, for what is not Python."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"{path}, line {error.lineno or '?'}: {error.msg}") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise ValueError(
            f"{path} cannot be read as Python: {error or 'too deeply nested'}"
        ) from error


def split_lines(text: str) -> list[str]:
    """Lines with their ends, as Python counts them: a form feed does not end one."""
    return [line + "\n" for line in text.removesuffix("\n").split("\n")]


def find(tree: ast.AST, name: str) -> Function | None:
    """The function, by qualified name; of several, the last one, as Python would take it."""
    *classes, function = name.split(".")
    for class_name in classes:
        inner = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name]
        if not inner:
            return None
        tree = inner[-1]
    found = [n for n in tree.body if isinstance(n, Function) and n.name == function]
    return found[-1] if found else None


def first_line(node: ast.stmt) -> int:
    """The line where a statement starts, its decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def body_of(node: Function) -> list[ast.stmt]:
    """The statements below the docstring."""
    return node.body[1:] if ast.get_docstring(node) is not None else node.body


def is_stub(node: Function) -> bool:
    """Whether a body is still the starter's."""
    body = body_of(node)
    return (
        len(body) == 1
        and isinstance(body[0], ast.Raise)
        and isinstance(body[0].exc, ast.Call)
        and isinstance(body[0].exc.func, ast.Name)
        and body[0].exc.func.id == "NotImplementedError"
    )


def has_body(node: Function, text: str) -> bool:
    """Whether a function's body is this text, spaces and comments aside."""
    other = ast.parse("def f():\n" + textwrap.indent(textwrap.dedent(text), " "))
    return [ast.dump(n) for n in body_of(node)] == [ast.dump(n) for n in other.body[0].body]


def written_holes(
    text: str, path: str, names: Sequence[str], hunts: Mapping[str, str] | None = None
) -> list[str]:
    """Those of the holes that are there and no longer the starter's: neither its stub nor the
    wrong body of a bug hunt. Raises ValueError for what is not Python."""
    tree, hunts = parse(text, path), hunts or {}
    found = [(name, node) for name in names if (node := find(tree, name)) is not None]
    return [
        name
        for name, node in found
        if not is_stub(node) and not (name in hunts and has_body(node, hunts[name]))
    ]


def message(slug: str, name: str) -> str:
    """What an unwritten hole says when it is called."""
    return f"lab {slug}: {name}"


def body_text(text: str, name: str) -> str:
    """A function's body as it stands in the text, comments at its start included."""
    node = find(parse(text, name), name)
    body = body_of(node)
    start = node.body[0].end_lineno if len(body) < len(node.body) else last_of_head(node)
    return "".join(split_lines(text)[start : node.end_lineno])


def last_of_head(node: Function) -> int:
    """The last line of `def ...:` where it stands alone, as our formatter has it."""
    ends = [n.end_lineno for n in [*ast.walk(node.args), node.returns] if hasattr(n, "end_lineno")]
    return max([node.lineno, *ends])


def strip(
    text: str,
    names: Sequence[str],
    slug: str,
    steps: Mapping[str, Sequence[str]] | None = None,
    hunts: Mapping[str, str] | None = None,
) -> str:
    """The text with each named body replaced by its numbered steps, as comments, and a raise of
    NotImplementedError that says the hole's name; by the wrong body of a bug hunt if there is
    one. Raises ValueError for a name that is not there or has no docstring."""
    tree = parse(text, slug)
    lines = split_lines(text)
    spans = []
    for name in names:
        node = find(tree, name)
        if node is None or ast.get_docstring(node) is None:
            raise ValueError(f"{name} is not a function with a docstring")
        docstring = node.body[0]
        spans.append((docstring.end_lineno, node.end_lineno, docstring.col_offset, name))
    for start, end, indent, name in sorted(spans, reverse=True):
        if name in (hunts or {}):
            lines[start:end] = [hunts[name]]
            continue
        numbered = enumerate((steps or {}).get(name, ()), 1)
        stub = [f"# {number}. {step}" for number, step in numbered]
        stub.append(f'raise NotImplementedError("{message(slug, name)}")')
        lines[start:end] = [f"{' ' * indent}{line}\n" for line in stub]
    return "".join(lines)
