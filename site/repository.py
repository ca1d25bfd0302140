"""Where the course's source can be cloned and read, as far as whoever builds the site says.

GitHub's runners say it themselves. Elsewhere MINIVLLM_SOURCE_URL does: a repository's address, or
that of a line in it, such as https://example.org/me/course/blob/main/{path}#L{line}.
"""

from __future__ import annotations

import os
import re

VARIABLE = "MINIVLLM_SOURCE_URL"


def source_url() -> str:
    """The address of a line, with {path} and {line}; "" where nobody said."""
    if said := os.environ.get(VARIABLE):
        return said if "{path}" in said else ""
    commit = os.environ.get("GITHUB_SHA") or "HEAD"
    return f"{repository()}/blob/{commit}/{{path}}#L{{line}}" if repository() else ""


def repository() -> str:
    """What `git clone` takes and a browser opens; "" where nobody said. Raises ValueError for what
    is no address of the web."""
    found = os.environ.get(VARIABLE, "").partition("{path}")[0]
    found = re.sub(r"(/-)?/(blob|src)(/.*)?$", "", found).rstrip("/")
    name = os.environ.get("GITHUB_REPOSITORY")
    if not found and name:
        found = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}"
    if found and not re.fullmatch(r"https?://[\w.:~/@%+-]+", found):
        raise ValueError(f"{VARIABLE} begins with {found!r}, which no browser can open")
    return found
