"""Source for a narrow column: docstrings and comments wrapped anew, and the code left as it is."""

from __future__ import annotations

import ast
import textwrap

from labs.holes import parse, split_lines

WIDTH = 70


def narrow(text: str, width: int = WIDTH) -> str:
    """The text with docstrings and lines of comment in at most `width` columns. A paragraph with
    lines further in, which may be a picture, stays. Raises ValueError for what is not Python."""
    lines = split_lines(text)
    for node in sorted(ast.walk(parse(text, "text")), key=lambda n: -getattr(n, "lineno", 0)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(
            node, clean=False
        ):
            said = node.body[0]
            span = slice(said.lineno - 1, said.end_lineno)
            lines[span] = _docstring("".join(lines[span]), said.col_offset, width)
    return "".join(_comment(line, width) for line in lines)


def _docstring(text: str, indent: int, width: int) -> list[str]:
    """A docstring's lines; those that are wide already stand in paragraphs that are filled."""
    if max(map(len, text.splitlines())) <= width:
        return split_lines(text)
    space, end = " " * indent, ""
    body = textwrap.dedent(text).rstrip()
    if body.endswith('\n"""'):  # on a line of its own
        body, end = body.removesuffix('\n"""'), f'\n{space}"""'
    wrapped = [_paragraph(part, space, width) for part in body.split("\n\n")]
    return split_lines("\n\n".join(wrapped) + end)


def _paragraph(text: str, space: str, width: int) -> str:
    if any(line.startswith(" ") for line in text.splitlines()):
        return textwrap.indent(text.rstrip(), space)
    return textwrap.fill(text, width, initial_indent=space, subsequent_indent=space)


def _comment(line: str, width: int) -> str:
    if len(line) <= width or not line.lstrip().startswith("#"):
        return line
    space = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line.strip(), width, initial_indent=space,
                         subsequent_indent=f"{space}#    ") + "\n"  # fmt: skip
