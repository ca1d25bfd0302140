"""Lessons that run in the page: Python in a real Chromium, the engine, a lab solved by typing."""

from __future__ import annotations

import json
import os
import re

import pytest
from browsing import LESSONS, NARROW, ROOT, WIDE
from test_floor_plan import FILES, is_control

pytest_plugins = ["browsing"]
pytestmark = pytest.mark.slow
LIVE_S = float(os.environ.get("MINIVLLM_LIVE_S", "180"))  # a busy machine starts Python slowly
ENDLESS = "        while True:\n            pass\n"


def test_every_file_of_the_control_plane_runs_in_the_browser_and_tiny_writes_quickly(page, home):
    """Python in the page, as lessons start it, without marimo. At least 15 tokens a second."""
    names = [f"minivllm.{n.replace('/', '.')}" for n in FILES if is_control(n) and n != "__init__"]
    code = f"""
        import importlib, json, time
        for name in {names}:
            importlib.import_module(name)
        from minivllm import LLM, SamplingParams
        llm, params = LLM("tiny"), SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        best = 0
        for _ in range(3):
            start = time.perf_counter()
            (out,) = llm.generate("Once upon a time", params)
            best = max(best, 60 / (time.perf_counter() - start))
        json.dumps([best, out.outputs[0].text])
    """
    page.goto(f"{home}/404.html")
    rate, text = json.loads(
        page.evaluate(
            """async code => {
                const base = `${location.origin}/run/python/pyodide/`;
                const {loadPyodide} = await import(`${base}pyodide.mjs`);
                const python = await loadPyodide({indexURL: base});
                await python.loadPackage("token-by-token");
                return python.runPython(code);
            }""",
            re.sub(r"^ {8}", "", code, flags=re.M),
        )
    )
    from minivllm import LLM, SamplingParams

    here = LLM("tiny", executor="executor.plain.PlainExecutor")
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    assert text == here.generate("Once upon a time", params)[0].outputs[0].text
    assert rate >= 15, f"{rate:.1f} tokens a second"


def open_live(page, home: str, lesson: str):
    """Click "Run it here" and wait until Python is there. The frame that the lesson runs in."""
    page.goto(f"{home}/lessons/{lesson}.html")
    page.get_by_role("link", name="Run it here").click()
    assert page.locator("dialog [role=status]").inner_text() == "starting Python"
    page.locator("dialog[data-state=live]").wait_for(timeout=LIVE_S * 1000)
    assert page.locator("dialog [role=status]").inner_text() == ""
    return page.frame_locator("dialog iframe")


def computed(frame) -> str:
    """All pictures in the frame, as markup."""
    return "".join(
        frame.locator(".output-area svg.tt").evaluate_all("all => all.map(s => s.outerHTML)")
    )


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_starts_in_the_page_and_a_slider_moves_its_picture(page, home, lesson):
    frame = open_live(page, home, lesson)
    assert frame.locator(".marimo-error").count() == 0
    before = computed(frame)
    assert before
    for slider in frame.get_by_role("slider").all():  # the first may ask for a guess
        slider.focus()
        for _ in range(3):
            slider.press("ArrowLeft")
    page.wait_for_function(
        """before => {
            const inside = document.querySelector("dialog iframe").contentDocument;
            const all = [...inside.querySelectorAll(".output-area svg.tt")];
            return all.map(s => s.outerHTML).join("") !== before;
        }""",
        arg=before,
        timeout=LIVE_S * 1000,
    )


HANDLES = "create-cell-button", "delete-button", "drag-button", "cell-actions-button"


def test_a_live_lesson_is_read_like_a_page_and_shows_its_code_when_asked(page, home):
    """Keys typed into nothing change nothing; marimo's handles for cells are not there."""
    frame = open_live(page, home, LESSONS[0])
    cells, code = frame.locator(".marimo-cell"), frame.locator(".tray .cm-content:visible")
    switch = page.get_by_role("button", name="Show the code")
    num_cells, before = cells.count(), computed(frame)
    assert num_cells > 10
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        assert code.count() == 0
        type_into_nothing(page, frame)
        switch.click()
        code.first.wait_for()
        type_into_nothing(page, frame)
        switch.click()
        code.first.wait_for(state="hidden")
    assert (cells.count(), computed(frame)) == (num_cells, before)
    assert frame.get_by_text("Cell copied").count() == 0
    page.locator("dialog").get_by_role("link", name="Next:").click()
    page.wait_for_url(f"**/lessons/{LESSONS[1]}.html")


def type_into_nothing(page, frame) -> None:
    """Click a picture, and type marimo's command keys. No handle shows itself."""
    frame.locator(".output-area svg.tt:visible").first.click()
    for keys in ("a", "b", "c", "v", "x", "q", "Shift+Backspace"):
        page.keyboard.press(keys)
    for name in HANDLES:
        assert frame.locator(f"[data-testid={name}]:visible").count() == 0
    assert not frame.get_by_role("button", name="Generate with AI").is_visible()


def test_the_lab_is_solved_by_typing_in_the_page(page, home):
    """A wrong answer is told what is wrong, an endless loop is stopped, a right answer passes."""
    frame = open_live(page, home, "05_paged_blocks")
    lab = ROOT / "labs" / "05_paged_blocks"
    right = (lab / "right" / "slices_and_counters.py").read_text(encoding="utf-8")
    start, guard, rest = re.split(r"( +if len\(taken\) < n:\n.*\n)", right)
    too_late = rest.replace("        return", f"{guard}        return", 1)
    type_and_check(page, frame, start + too_late)
    told(frame, "takes nothing when short")
    told(frame, "Hint 1 of 3")
    type_and_check(page, frame, right.replace("        taken =", f"{ENDLESS}        taken ="))
    told(frame, "steps")
    type_and_check(page, frame, right)
    told(frame, "tests pass")


def told(frame, text: str) -> None:
    """Wait until the lab's answer says this."""
    answer = frame.locator("[role=status].tt-box", has_text=text)
    answer.wait_for(timeout=LIVE_S * 1000)


def type_and_check(page, frame, text: str) -> None:
    editor = frame.locator("marimo-code-editor .cm-content").first
    editor.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(text)
    frame.get_by_role("button", name="Check my code").click()
