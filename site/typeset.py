"""Maths set by KaTeX while the site is built: a reader needs no JavaScript for it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape

from fetch import NODE_MODULES

SCRIPT = """
const katex = require(process.argv[1] + "/katex");
let text = "";
process.stdin.on("data", part => text += part).on("end", () => {
  const out = JSON.parse(text).map(([tex, displayMode]) =>
    katex.renderToString(tex, {displayMode, throwOnError: true, strict: "ignore"}));
  process.stdout.write(JSON.stringify(out));
});
"""
FORMULA = re.compile(
    r'(<(?P<tag>span|div) class="arithmatex">)\s*'
    r"\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]\s*</(?P=tag)>",
    re.S,
)


def typeset(html: str) -> str:
    """The formulas that arithmatex and marimo mark, set. Raises ValueError for one that KaTeX does
    not understand."""
    found = [(unescape(m["tex"]), m["open"] == "[") for m in FORMULA.finditer(html)]
    if not found:
        return html
    node = shutil.which("node")
    if node is None:
        raise ValueError("the site needs Node.js (20 or newer) to set its formulas")
    done = subprocess.run(
        [node, "-e", SCRIPT, str(NODE_MODULES)],
        input=json.dumps(found), capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"KaTeX: {done.stderr[-600:]}")
    made = iter(json.loads(done.stdout))
    return FORMULA.sub(lambda m: f"{m[1]}{next(made)}</{m['tag']}>", html)
