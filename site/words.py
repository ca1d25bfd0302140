"""Glossary: its page, and hover text where a word first stands on another page."""

from __future__ import annotations

import re
import sys
from html import escape
from html.parser import HTMLParser
from pathlib import Path

from static_html import VOID, svg_case

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lessons.glossary import GLOSSARY

# No word is marked in these, nor inside of a link.
QUIET = {"a", "button", "code", "pre", "svg", "h1", "h2", "h3", "h4", "summary", "script", "style",
         "table", "option", "label", "figure", "dl"}  # fmt: skip


def slug(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")


def glossary_page(room_of: dict[str, str]) -> str:
    """Markdown. room_of: an engine file -> the path of its room's page."""
    lines = ["# Glossary\n", "The course's words, one sentence each, and where each lives.\n"]
    for word in sorted(GLOSSARY, key=str.lower):
        entry = GLOSSARY[word]
        where = ""
        if entry.file in room_of:
            target = f"{room_of[entry.file]}#{slug(entry.file)}".replace(".html", ".md")
            where = f" [`{entry.file}`]({target})"
        lines.append(f"### {word} {{ #{slug(word)} }}\n\n{entry.says}{where}\n")
    return "\n".join(lines)


def mark_words(html: str, base: str) -> str:
    """Links each glossary word where it first stands in running text. base: the way from the page
    to the site's top, with its slash."""
    marker = Marker(base)
    marker.feed(html)
    marker.close()
    return "".join(marker.out)


class Marker(HTMLParser):
    """Copies HTML, and marks each word once, in paragraphs and list items only."""

    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=False)
        self.base = base
        self.out: list[str] = []
        self.open: list[tuple[str, bool]] = []  # elements around, and whether each is quiet
        self.names = {word.lower(): word for word in GLOSSARY}  # those not marked yet
        longest = sorted(map(re.escape, GLOSSARY), key=len, reverse=True)
        self.pattern = re.compile(rf"(?<![\w-])({'|'.join(longest)})(?![\w-])", re.I)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.out.append(self.get_starttag_text())
        if tag not in VOID:
            said = dict(attrs).get("class") or ""
            quiet = tag in QUIET or any(mark in said for mark in ("arithmatex", "control", "facts"))
            self.open.append((tag, quiet))

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.out.append(self.get_starttag_text())

    def handle_endtag(self, tag: str) -> None:
        self.out.append(f"</{svg_case(tag)}>")
        while any(tag == name for name, _ in self.open):
            if self.open.pop()[0] == tag:
                break

    def handle_data(self, data: str) -> None:
        around = [tag for tag, _ in self.open]
        running = "p" in around or "li" in around
        if running and not any(quiet for _, quiet in self.open):
            data = self.pattern.sub(self.mark, data)
        self.out.append(data)

    def mark(self, match: re.Match) -> str:
        word = self.names.pop(match[1].lower(), None)
        if word is None:
            return match[0]
        says = escape(GLOSSARY[word].says, quote=True)
        target = f"{self.base}glossary.html#{slug(word)}"
        return f'<a class="term" href="{target}" data-says="{says}">{match[0]}</a>'

    def handle_entityref(self, name: str) -> None:
        self.out.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.out.append(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        self.out.append(f"<!--{data}-->")
