"""A hole is a function of the engine whose body is left for you to write.

Finds functions by qualified name and removes bodies. Text in, text out: nothing is imported or
run, and whatever stays, stays byte for byte.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
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


def message(slug: str, name: str) -> str:
    """What an unwritten hole says when it is called."""
    return f"lab {slug}: {name}"


def strip(
    text: str, names: Sequence[str], slug: str, steps: dict[str, list[str]] | None = None
) -> str:
    """The text with each named body replaced by its numbered steps, as comments, and a raise of
    NotImplementedError that says the hole's name. Raises ValueError for a name that is not there
    or has no docstring."""
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
        numbered = enumerate((steps or {}).get(name, ()), 1)
        stub = [f"# {number}. {step}" for number, step in numbered]
        stub.append(f'raise NotImplementedError("{message(slug, name)}")')
        lines[start:end] = [f"{' ' * indent}{line}\n" for line in stub]
    return "".join(lines)
