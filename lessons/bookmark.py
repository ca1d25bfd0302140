"""A lesson's bookmark: it remembers which act the reader has come to, and goes back there.

A script in a frame of no height, since a notebook open for editing runs no other. It counts the
page's headings of second rank (the acts) and writes into a cookie of its own where the reader is
and how far they ever came: "3-8-5" is the third of eight, after the fifth was seen. The home page
reads it: browsers share cookies between the ports of a machine. It asks nobody and sends nothing
elsewhere.
"""

from __future__ import annotations

import json
import os

MARK = "place_"  # and a lesson's name: the cookie
HOME_ADDRESS = "TOKEN_BY_TOKEN_HOME"  # the variable that tells a lesson where the course's home is

SCRIPT = """<script>
(() => {
  const page = window.parent, doc = page.document, cookie = NAME;
  if (page.tokenByTokenBookmark) return; // this cell ran once more
  page.tokenByTokenBookmark = true;
  const began = Date.now();
  const acts = () => [...doc.querySelectorAll("h2")].filter((h) => h.offsetParent !== null);
  const written = doc.cookie.split("; ").find((c) => c.startsWith(cookie + "="));
  const wanted = written ? parseInt(written.split("=")[1]) : 0;
  let furthest = written ? parseInt(written.split("-")[2]) || 0 : 0;
  let isReturning = wanted > 0, isDue = false;
  const stay = () => { isReturning = false; };
  for (const kind of ["wheel", "touchstart", "keydown", "pointerdown"])
    doc.addEventListener(kind, stay, { capture: true, passive: true });

  // Pictures above still grow while cells run, so it goes there until they stand still.
  const goBack = () => {
    if (!isReturning) return;
    const there = acts()[wanted - 1];
    if (there && Math.abs(there.getBoundingClientRect().top - 24) > 4) {
      there.style.scrollMarginTop = "24px";
      there.scrollIntoView();
    }
    if (Date.now() - began < 8000) page.setTimeout(goBack, 200);
    else isReturning = false;
  };
  goBack();

  const mark = () => {
    isDue = false;
    if (isReturning) return;
    const all = acts();
    const above = (y) => all.filter((h) => h.getBoundingClientRect().top < y).length;
    const act = above(page.innerHeight / 2);
    furthest = Math.max(furthest, above(page.innerHeight));
    const kept = "path=/; max-age=31536000; samesite=lax";
    if (all.length) doc.cookie = `${cookie}=${act}-${all.length}-${furthest}; ${kept}`;
  };
  doc.addEventListener("scroll", () => {
    if (!isDue) page.setTimeout(mark, 300);
    isDue = true;
  }, { capture: true, passive: true });
})();
</script>"""


def home_address() -> str:
    """Of the course's home page, in a lesson that was opened from it; else nothing."""
    return os.environ.get(HOME_ADDRESS, "")


def script(name: str) -> str:
    """HTML for a frame in the lesson of this name (its file's, without `.py`)."""
    return SCRIPT.replace("NAME", json.dumps(MARK + name))
