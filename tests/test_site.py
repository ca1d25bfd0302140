"""The site in a real Chromium: what readers see, and lessons that run in the page."""

from __future__ import annotations

import importlib
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browsing import LESSONS, NARROW, SITE, WIDE, Watch

from minivllm.bench.hardware import HARDWARE
from minivllm.bench.model_shapes import MODELS
from minivllm.bench.roofline import (
    Deployment,
    bytes_moved,
    decode_work,
    flops,
    prefill_work,
    step_seconds,
)
from minivllm.kvcache.spec import KVCacheSpec

pytest_plugins = ["browsing"]
pytestmark = pytest.mark.slow


def pages(public: Path) -> list[str]:
    found = sorted(p.relative_to(public).as_posix() for p in public.rglob("*.html"))
    return [path for path in found if not path.startswith("run/")]


# Pages to read.


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_and_asks_nobody_and_has_no_barrier(browser, public, home, scheme):
    """At 1280 and 360 pixels; axe-core names what a screen reader or a keyboard would meet."""
    axe = SITE / "build" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
    wrong = []
    with browser.new_context(viewport=WIDE, color_scheme=scheme) as context:
        context.add_init_script(path=axe)
        watch = Watch(context, home)
        page = context.new_page()
        for path in pages(public):
            page.set_viewport_size(WIDE)
            page.goto(f"{home}/{path}")
            assert page.locator("body").get_attribute("data-md-color-scheme") == (
                "slate" if scheme == "dark" else "default"
            )
            for size in (WIDE, NARROW):
                page.set_viewport_size(size)
                width = page.evaluate("document.documentElement.scrollWidth")
                if width > size["width"]:
                    wrong.append(f"{path} is {width} wide at {size['width']}")
                if scheme == "light" or size is WIDE:  # the dark differs in its colours alone
                    rule = "color-contrast" if scheme == "dark" else None
                    wrong += [f"{path} at {size['width']}: {b}" for b in barriers(page, rule)]
            watch.check()
    assert wrong == []


def barriers(page, rule: str | None = None) -> list[str]:
    """axe-core's serious and critical violations, of one rule or of any."""
    found = page.evaluate(
        """async rule => {
        const asked = rule ? {runOnly: [rule]} : {};
        const found = await axe.run(document, {resultTypes: ["violations"], ...asked});
        return found.violations.filter(v => ["serious", "critical"].includes(v.impact))
            .map(v => `${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 150)).join(" | ")}`);
    }""",
        rule,
    )
    return list(found)


def test_search_finds_a_word_of_a_lesson(page, home):
    page.goto(f"{home}/index.html")
    page.locator("input[name=query]").click()
    page.locator("input[name=query]").press_sequentially("contiguous")
    hit = page.locator(".md-search-result__link", has_text="Paged blocks").first
    hit.wait_for()
    hit.click()
    page.wait_for_url("**/lessons/05_paged_blocks.html*")


def test_the_site_can_be_read_and_searched_from_a_folder(browser, public):
    with browser.new_context(viewport=WIDE) as context:
        watch = Watch(context, "file:")
        page = context.new_page()
        page.goto((public / "index.html").as_uri())
        page.get_by_role("link", name="Paged blocks").first.click()
        assert page.locator("h1").inner_text() == "Paged blocks"
        page.locator("input[name=query]").click()
        page.locator("input[name=query]").press_sequentially("preemption")
        page.locator(".md-search-result__link").first.wait_for()
        watch.check()


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_shows_its_pictures_without_javascript_in_one_megabyte(browser, home, lesson):
    with browser.new_context(viewport=WIDE, java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{home}/lessons/{lesson}.html")
        assert page.locator("figure svg:visible").count() >= 3
        assert page.locator("h2").count() == 8
    with browser.new_context(viewport=WIDE) as context:
        page = context.new_page()
        sizes: list[int] = []
        page.on("response", lambda r: sizes.append(len(r.body())))
        page.goto(f"{home}/lessons/{lesson}.html", wait_until="networkidle")
        assert len(sizes) > 5
        assert sum(sizes) <= 1_000_000


def test_the_site_is_at_most_80_megabytes(public):
    assert sum(p.stat().st_size for p in public.rglob("*") if p.is_file()) <= 80_000_000


def test_every_internal_link_leads_somewhere(public):
    outlines = {p: Outline((public / p).read_text(encoding="utf-8")) for p in pages(public)}
    links = [(path, link) for path, outline in outlines.items() for link in outline.links]
    assert len(links) > 1000
    assert [both for both in links if not leads_somewhere(public, outlines, *both)] == []


def leads_somewhere(public: Path, outlines: dict[str, Outline], path: str, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # out of the site; no test asks other machines
    here = public if parts.path.startswith("/") else (public / path).parent
    target = here / unquote(parts.path).lstrip("/") if parts.path else public / path
    if not target.is_file():
        return False
    goal = target.resolve().relative_to(public.resolve()).as_posix()
    known = outlines[goal].ids if goal in outlines else {parts.fragment}
    return not parts.fragment or unquote(parts.fragment) in known


class Outline(HTMLParser):
    """A page's links and the places that one can link to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = {"__search", "__drawer"}
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        found = dict(attrs)
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}
        self.links += [found[n] for n in ("href", "src") if found.get(n)]


def test_a_word_explains_itself_under_the_pointer_and_on_the_keyboard(page, home):
    page.goto(f"{home}/calculators.html")
    word, tip = page.locator("a.term").first, page.locator("#term-tip")
    assert not tip.is_visible()
    word.focus()
    assert tip.inner_text() == word.get_attribute("data-says")
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    word.hover()
    assert tip.is_visible()
    word.click()
    page.wait_for_url("**/glossary.html#*")


def test_the_walk_goes_from_stop_to_stop(page, home):
    page.goto(f"{home}/walk.html")
    assert page.locator(".tt-walk:visible").count() == 1
    first = page.locator(".tt-walk:visible").inner_text()
    page.get_by_role("button", name="Next").click()
    assert page.locator(".tt-walk:visible").inner_text() != first
    page.get_by_role("slider").press("End")
    last = page.locator(".tt-walk:visible").inner_text()
    assert f"stop {page.locator('.tt-walk').count()} of" in last.lower()
    assert page.get_by_role("button", name="Next").is_disabled()


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_the_rooflines_numbers_are_the_simulators(page, home, phase):
    page.goto(f"{home}/calculators.html")
    asked = [
        (model, machine, bits, requests, context)
        for model in MODELS
        for machine in HARDWARE
        for bits, requests, context in ((16, 1, 100), (8, 32, 1024), (4, 200, 5000))
    ]
    answers = page.evaluate(
        """([asked, phase]) => asked.map(([model, machine, bits, requests, context]) => {
            const known = window.CALCULATORS;
            const tokens = phase === "prefill" ? context : 1;
            const r = calculators.step(known.models[model], known.machines[machine], bits, 16,
                                       requests, tokens, context);
            return [r.flops, r.bytes, r.seconds];
        })""",
        [asked, phase],
    )
    for (model, machine, bits, requests, context), answer in zip(asked, answers, strict=True):
        deployment = Deployment(MODELS[model], HARDWARE[machine], weight_bits=bits)
        work = (prefill_work(context, num_requests=requests) if phase == "prefill"
                else decode_work(requests, context))  # fmt: skip
        want = [flops(deployment, work), bytes_moved(deployment, work),
                step_seconds(deployment, work)]  # fmt: skip
        assert answer == pytest.approx(want, rel=1e-9)


def test_the_memory_calculators_numbers_are_the_engines(page, home):
    page.goto(f"{home}/calculators.html")
    for name, shape in MODELS.items():
        answer = page.evaluate(
            """name => {
                const known = window.CALCULATORS;
                const model = known.models[name];
                return calculators.kvMemory(model, known.machines.h200, 8, 16, 32, 1000);
            }""",
            name,
        )
        spec = KVCacheSpec(32, shape.num_layers, shape.num_kv_heads, shape.head_dim, 2)
        assert answer["perToken"] == spec.bytes_per_token
        assert answer["perRequest"] == 32 * spec.bytes_per_block  # 1,000 tokens in blocks of 32
        deployment = Deployment(shape, HARDWARE["h200"], weight_bits=8, block_size=32)
        assert answer["blocks"] == deployment.num_blocks()


def test_a_calculator_answers_while_one_types_and_refuses_what_cannot_be(page, home):
    page.goto(f"{home}/calculators.html")
    calculator = page.locator(".calc").first
    before = calculator.locator("output b").inner_text()
    calculator.get_by_label("tokens in a request").fill("4096")
    assert calculator.locator("output b").inner_text() != before
    calculator.get_by_label("tokens in a request").fill("0")
    assert "tokens in a request" in calculator.locator("output").inner_text()


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_no_button_lies_over_code(page, home, size):
    page.set_viewport_size(size)
    page.goto(f"{home}/setup.html")
    page.locator(".md-code__nav").first.wait_for(state="attached")
    covered = page.evaluate("""() => [...document.querySelectorAll(".md-code__nav")].filter(nav => {
        const range = document.createRange(), at = nav.getBoundingClientRect();
        range.selectNodeContents(nav.closest("pre").querySelector("code"));
        return [...range.getClientRects()].some(r => r.width && r.right > at.left
            && r.left < at.right && r.top < at.bottom && r.bottom > at.top);
    }).map(nav => nav.closest("pre").innerText)""")
    assert covered == []


def test_both_calculators_begin_on_the_same_machine(page, home):
    page.goto(f"{home}/calculators.html")
    first = page.locator("select[name=machine]").evaluate_all("all => all.map(s => s.value)")
    assert len(first) == 2 and first[0] == first[1]
    axes = page.locator(".calc svg text").all_text_contents()
    assert axes == ["FLOP a second", "FLOP per byte"]


def test_what_a_search_finds_is_no_list_of_facts(public):
    index = json.loads((public / "search" / "search_index.json").read_text(encoding="utf-8"))
    texts = {one["location"]: one["text"] for one in index["docs"]}
    for lesson in LESSONS:
        beginning = texts[f"lessons/{lesson}.html"][:400]
        assert "?</p>" in beginning and not re.search(r"about \d+ minutes", beginning)


# What makes the pages, without a browser.


@pytest.fixture(scope="module")
def maker():
    """A module of site/, by name."""
    sys.path.insert(0, str(SITE))
    yield importlib.import_module
    sys.path.remove(str(SITE))


@pytest.fixture
def static_html(maker):
    return maker("static_html").static_html


ADDRESSES = {  # what a build is told -> (repository, the third line of a file)
    "GITHUB_REPOSITORY=me/course": (
        "https://github.com/me/course",
        "https://github.com/me/course/blob/HEAD/a.py#L3",
    ),
    "GITHUB_REPOSITORY=me/course GITHUB_SERVER_URL=https://git.example GITHUB_SHA=abc": (
        "https://git.example/me/course",
        "https://git.example/me/course/blob/abc/a.py#L3",
    ),
    "MINIVLLM_SOURCE_URL=https://git.example/me/course/-/blob/main/{path}#L{line}": (
        "https://git.example/me/course",
        "https://git.example/me/course/-/blob/main/a.py#L3",
    ),
    "MINIVLLM_SOURCE_URL=https://git.example/me/course/ GITHUB_REPOSITORY=other/course": (
        "https://git.example/me/course",
        "",
    ),
    "": ("", ""),
}


def tell(monkeypatch, told: str) -> None:
    for name in ("MINIVLLM_SOURCE_URL", "GITHUB_REPOSITORY", "GITHUB_SERVER_URL", "GITHUB_SHA"):
        monkeypatch.delenv(name, raising=False)
    for said in told.split():
        monkeypatch.setenv(*said.split("=", 1))


@pytest.mark.parametrize("told", ADDRESSES)
def test_the_repository_is_the_one_that_the_build_is_told(maker, monkeypatch, told):
    repository = maker("repository")
    tell(monkeypatch, told)
    line = repository.source_url().format(path="a.py", line=3)
    assert (repository.repository(), line) == ADDRESSES[told]


def test_an_address_that_no_browser_opens_stops_the_build(maker, monkeypatch):
    for address in ("javascript:alert(1)", 'https://x"onclick=', "git@example.org:me/course"):
        tell(monkeypatch, f"MINIVLLM_SOURCE_URL={address}")
        with pytest.raises(ValueError, match="no browser can open"):
            maker("repository").repository()


def test_set_up_clones_what_is_known_and_makes_sense_where_nothing_is(maker, monkeypatch):
    made, slot = maker("made"), '<div data-made="get"></div>'
    tell(monkeypatch, "GITHUB_REPOSITORY=me/course")
    assert "git clone https://github.com/me/course minivllm &amp;&amp;" in made.fill(slot, [], "")
    tell(monkeypatch, "")
    html = made.fill(slot, [], "")
    assert "git clone" not in html and "one folder" in html and "make learn" in html


def test_a_file_of_the_engine_links_to_the_repository(maker, monkeypatch):
    pages = maker("engine_pages")
    tell(monkeypatch, "GITHUB_REPOSITORY=me/course")
    there = "https://github.com/me/course/blob/HEAD/minivllm/kvcache/block_pool.py#L1"
    assert f'href="{there}"' in pages.file_section("kvcache/block_pool", [])
    tell(monkeypatch, "")
    assert "in the repository" not in pages.file_section("kvcache/block_pool", [])


def test_the_plan_knows_every_lesson_that_is_written(maker):
    plan, known = maker("plan"), maker("lesson_pages").lessons()
    order, paths = plan.planned(), plan.paths_list(known, "")
    assert len(order) == len(dict(order)) == 32
    for lesson in known:
        about = lesson.about
        assert order[about["number"] - 1] == (about["slug"], about["title"])
        assert about["slug"] in plan.PARTS[about["part"]]
        assert all(slug in dict(order) for slug in about["needs"])
        assert f'lessons/{lesson.notebook.stem}.html">{lesson.name}</a>' in paths
    assert plan.plan_list(known, "").count("<li>") == 32


def test_a_live_lesson_knows_where_to_go_on(maker):
    pages = maker("lesson_pages")
    first, second, *_, last = pages.lessons()
    html = pages.run_it_here(first, pages.lessons())
    assert f'data-next="{second.notebook.stem}.html" data-next-title="{second.name}"' in html
    assert "data-next" not in pages.run_it_here(last, pages.lessons())
    assert "in the live lesson, or in a terminal: " in pages.opening(first, pages.lessons(), {})


def test_a_control_becomes_its_name_and_its_value(static_html):
    import marimo as mo

    slider = mo.ui.slider(steps=[1, 2, 4, 8], value=4, label="slots in a block")
    assert static_html(slider.text) == '<span class="control">slots in a block <b>4</b></span>'
    switch = mo.ui.switch(value=True, label="my code")
    assert "my code <b>on</b>" in static_html(switch.text)
    choice = static_html(mo.ui.radio(["a < b", "b"], label="Which?").text)
    assert "<li>a &lt; b</li><li>b</li>" in choice


def test_what_is_drawn_and_what_is_folded_stays(static_html):
    import marimo as mo

    drawn = '<svg viewBox="0 0 1 1"><clipPath id="c"></clipPath></svg>'
    html = static_html(mo.accordion({"more": mo.Html(f"<div>{drawn}</div>")}).text)
    assert drawn in html
    assert html.count("<details") == html.count("</details>") == 1
    assert "<summary>more</summary>" in html
    formula = static_html(mo.md(r"$\frac{a}{b}$").text)
    assert r'<span class="arithmatex">\(\frac{a}{b}\)</span>' in formula


def test_an_element_without_a_plain_form_stops_the_build(static_html):
    with pytest.raises(ValueError, match="marimo-mermaid"):
        static_html("<marimo-mermaid></marimo-mermaid>")
