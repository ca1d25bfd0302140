"""How the parts of a lesson look: its head, its quizzes, a lab in the page. CSS, and nothing else.

Colours are those of `svg.PALETTE`. The notebook's own page stays marimo's, but for three things.
Open for editing, it would put all that is higher than 610 pixels behind a scroll bar of its own,
and show half a line of each cell's hidden code (here: under the pointer only). Its tables would
flash yellow.
"""

from __future__ import annotations

from . import svg

LESSON_CSS = """
abbr.mv-term{text-decoration:underline dotted;text-underline-offset:.2em;cursor:help}
.prose :not(pre)>code{overflow-wrap:anywhere}
.tt-head{border-left:4px solid var(--tt-prefill);padding:.2rem 0 .2rem 1rem;margin:.5rem 0 1rem;
max-width:680px;color:var(--tt-ink)}
.tt-head .tt-part{color:var(--tt-muted);font-size:14px;letter-spacing:.02em;margin:0}
.tt-head h1{font-family:var(--heading-font,inherit);font-weight:600;font-size:34px;line-height:1.2;
margin:.1rem 0 .6rem;color:var(--tt-ink)}
.tt-head .tt-question{font-size:20px;line-height:1.45;margin:0 0 .8rem;color:var(--tt-ink)}
.tt-head dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem .9rem;margin:0;
font-size:14px;line-height:1.5}
.tt-head dt{color:var(--tt-muted)}
.tt-head dd{margin:0;min-width:0;overflow-wrap:anywhere}
.tt-box{max-width:680px;color:var(--tt-ink);font-size:16px;line-height:1.55;margin:.6rem 0}
.tt-box code,.tt-head code{font:13px/1.5 var(--tt-mono);overflow-wrap:anywhere}
.tt-box pre{font:13px/1.5 var(--tt-mono);overflow-x:auto;background:var(--tt-soft);
color:var(--tt-ink);padding:.6rem .8rem;border-radius:4px;margin:.4rem 0}
.tt-quiz{border-top:1px solid var(--tt-line);padding:.7rem 0 .4rem}
.tt-quiz>p{margin:0 0 .4rem;font-weight:600}
.tt-quiz details{border:1px solid var(--tt-line);border-radius:4px;margin:.3rem 0}
.tt-quiz summary{cursor:pointer;padding:.35rem .7rem;list-style-position:inside}
.tt-quiz details p{margin:0;padding:.1rem .7rem .6rem 1.7rem}
.tt-quiz details[open].tt-right{border-color:var(--tt-prefill);background:var(--tt-prefill-soft)}
.tt-quiz details[open].tt-wrong{border-color:var(--tt-warn);background:var(--tt-warn-soft)}
.tt-answer{border-left:4px solid var(--tt-decode);padding:.1rem 0 .1rem .9rem}
.tt-answer p{margin:.2rem 0}
.tt-number{font:600 22px/1.3 var(--tt-mono)}
.tt-source{max-width:760px;margin:.8rem 0;color:var(--tt-ink)}
.tt-source .tt-where{font:13px/1.4 var(--tt-mono);color:var(--tt-muted);margin:0 0 .2rem;
overflow-wrap:anywhere}
.tt-source .tt-where a{color:var(--tt-prefill)}
.tt-source pre{overflow-x:auto;font-size:13px;line-height:1.5}
.tt-source details{margin:.3rem 0;font-size:15px;line-height:1.5}
.tt-source summary{cursor:pointer;color:var(--tt-muted)}
.tt-box p{margin:.5rem 0}
.tt-test+p{margin-top:1rem}
.tt-test{display:flex;gap:.8rem;justify-content:space-between;padding:.1rem 0;
border-bottom:1px solid var(--tt-line)}
.tt-test b{white-space:nowrap;font:600 13px/1.6 var(--tt-mono)}
.tt-test.tt-passed b{color:var(--tt-prefill)}
.tt-test.tt-failed b{color:var(--tt-warn)}
.tt-counters{display:flex;flex-wrap:wrap;gap:.4rem 2.4rem;margin:.4rem 0}
.tt-counters div{min-width:8rem}
.tt-counters b{display:block;overflow-wrap:anywhere;font:600 30px/1.2 var(--tt-mono)}
.tt-counters span{color:var(--tt-muted);font-size:14px}
.marimo-cell.interactive .output-area.output-area{max-height:none}
.marimo-cell:not(:hover,:focus-within) .tray .cm.opacity-20{visibility:hidden}
.markdown table tbody tr:hover{background:none!important}
"""


def css() -> str:
    """All that a lesson's page needs, once."""
    return svg.css() + LESSON_CSS
