import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="09 Continuous batching")

with app.setup(hide_code=True):
    import marimo as mo

    from lessons import batching, show, step_drawings
    from lessons.batching import NEW, OLD
    from lessons.glossary import term
    from lessons.stepping import Limits, run
    from minivllm.request import Request
    from minivllm.scheduler.policy import Static
    from minivllm.scheduler.scheduler import Scheduler

    LESSON = {
        "number": 9,
        "slug": "continuous_batching",
        "title": "Continuous batching",
        "part": "III. Scheduling",
        "question": "Why does a GPU that serves thirty people sit mostly idle, and what did Orca "
        "change?",
        "needs": ["roofline", "paged_blocks"],
        "reads": ["minivllm/scheduler/scheduler.py", "minivllm/request.py"],
        "lab": "continuous_batching",
        "runs_on": "browser",
        "minutes": 60,
    }


@app.cell(hide_code=True)
def _():
    show.header(LESSON)
    return


@app.cell(hide_code=True)
def _():
    old_crowd, new_crowd = batching.crowd(OLD), batching.crowd(NEW)
    _counted = show.counters({
        "to serve them all, the old way": f"{old_crowd.makespan_s:.1f} s",
        "in another order: same people, same GPU": f"{new_crowd.makespan_s:.1f} s",
    })  # fmt: skip
    mo.md(f"""
    ## 1. The question

    To write one token, a GPU reads all the {term("weights")} of the model. With the same reading
    it can write one token for each of 32 people, in hardly more time. So people are served
    together, in a {term("batch")}. Think of it as a table with 32 **places**.

    {len(old_crowd.records)} people come at once. The server does what every server did until 2022:
    it seats the first 32, writes until all of them have their answers, and seats the next 32.

    {_counted}

    Same model, same 32 places, same answers, token for token. Nothing was bought and nothing was
    made faster. So what did the GPU do in the rest of the time?

    ({term("modelled", "Modelled")}: the real scheduler under a virtual clock, Llama 3 8B on one
    H100; answers of 150 tokens on average, 600 at most. Act 7 has a clock that is real.)
    """)
    return new_crowd, old_crowd


@app.cell(hide_code=True)
def _():
    guess = show.predict(
        "The old way: how many percent of the 32 places stood empty, over the whole time?",
        step=5,
        start=20,
    )
    mo.vstack([mo.md("## 2. Your guess"), guess])
    return (guess,)


@app.cell(hide_code=True)
def _(guess, new_crowd, old_crowd):
    show.reveal(
        guess.value,
        f"{batching.idle_share(old_crowd):.0%}",
        f"""A table is cleared when its **longest** answer is done, and answers differ: most are
short, a few very long. Who is done early leaves an empty place, and the queue may not use it. Orca
(Yu et al., 2022) decides anew at every step: a place is given away the moment it is empty. That
leaves {batching.idle_share(new_crowd):.0%}, nearly all at the very end, when nobody waits.""",
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md(f"""
    ## 3. Play

    The same people are served twice. A column is one {term("step")} of the engine, a row one
    place, a letter the person whose tokens are computed there. Hatched is {term("prefill")}: the
    prompt is read. Plain is {term("decode")}: one more token of the answer. A dash is an empty
    place. Drag the step back to the start, and go forward.
    """)
    return


@app.cell(hide_code=True)
def _():
    pattern = mo.ui.dropdown(
        batching.PATTERNS, value=next(iter(batching.PATTERNS)), label="who comes"
    )
    places = mo.ui.slider(2, 6, value=4, label="places", show_value=True)
    return pattern, places


@app.cell(hide_code=True)
def _(chosen, pattern, places):
    both = {
        name: run(pattern.value, Limits(places.value, 32, policy=policy), chosen.package)
        for name, policy in (("Old: static batches", OLD), ("New: every step anew", NEW))
    }
    _last = max(len(made.steps) for made in both.values())
    upto = mo.ui.slider(0, _last, value=_last, label="up to step", show_value=True, full_width=True)
    return both, upto


@app.cell(hide_code=True)
def _(both, chosen, pattern, places, upto):
    _drawn = [
        step_drawings.by_place(
            made,
            upto.value,
            title=f"{name}, {len(pattern.value)} requests in {places.value} places",
            caption=f"{name}. {len(made.steps)} steps; {made.idle_share:.0%} of the places stood "
            f"empty. {made.failure}",
        )
        for name, made in both.items()
    ]
    mo.vstack([
        mo.hstack([pattern, places], justify="start", wrap=True),
        upto,
        show.picture(*_drawn),
        mo.md(f"""
        *The scheduler: {chosen.name}.* Try the answers that are all alike: the old way loses
        nothing. Then find a number of places where the new way is hardly better. What has to be
        true of the people?
        """),
    ])  # fmt: skip
    return


@app.cell(hide_code=True)
def _():
    mo.md(f"""
    ### The scheduler, by hand

    Who is {term("admission", "admitted")}, and how much is computed of whom, is decided within
    three limits: **places** (`max_num_seqs`), **tokens** of a step (`max_num_batched_tokens`, the
    {term("token budget")}), and **memory**: {term("block", "blocks")} for the {term("KV")}. Here
    they are 3 places, 8 tokens, 8 blocks of 4 tokens each. Requests a and b come first, then c
    with a long prompt, then d, then e.

    Step through it, and before each step say whose tokens will be computed. The long prompt is cut
    in pieces; later, memory is full in mid-sentence; and there is a step in which a place, tokens
    and blocks are free, and yet somebody waits.
    """)
    return


@app.cell(hide_code=True)
def _():
    budget = mo.ui.slider(2, 16, value=8, label="tokens of a step", show_value=True)
    memory = mo.ui.slider(4, 14, value=8, label="blocks", show_value=True)
    return budget, memory


@app.cell(hide_code=True)
def _(budget, chosen, memory):
    few_run = run(batching.FEW, Limits(3, budget.value, memory.value), chosen.package)
    by_hand = mo.ui.slider(
        1, max(2, len(few_run.steps)), value=2, label="step", show_value=True, full_width=True
    )
    return by_hand, few_run


@app.cell(hide_code=True)
def _(budget, by_hand, chosen, few_run, memory):
    _shown = [mo.md(few_run.failure)]
    if few_run.steps:
        _step = few_run.steps[: by_hand.value][-1]
        _over_time = step_drawings.by_request(
            few_run,
            _step.number,
            f"five requests up to step {_step.number}",
            "Tokens computed, by request and step; w: it waits, x: it was stopped.",
        )
        _inside = step_drawings.inside(
            few_run,
            _step,
            f"what step {_step.number} is made of",
            f"Step {_step.number}: whose its tokens and its blocks are. The scheduler: "
            f"{chosen.name}.",
        )
        _shown = [show.picture(_over_time, _inside), mo.Html(step_drawings.reasons(_step)), *_shown]
    mo.vstack([by_hand, mo.hstack([budget, memory], justify="start", wrap=True), *_shown])
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## 4. The law

    **Places.** Answers have lengths $L$, in tokens, and $n$ of them sit at one table. The table
    lasts as long as its longest answer; what is written is their sum. So a static batch uses, of
    all places in all steps, the share

    $$U_{\text{static}} = \frac{\overline{L}}{\mathbb{E}[\max_n L]}
    \quad \left[\frac{\text{tokens}}{\text{tokens}}\right]$$

    the mean over the expected longest. If all lengths are alike it is 1. With a few long ones it
    falls as $n$ grows: a larger table makes it *worse*. Deciding at every step, $U$ stays near 1 as
    long as somebody waits. The formula, and the real scheduler, for 160 answers of 40 tokens on
    average and 160 at most:
    """)
    return


@app.cell(hide_code=True)
def _():
    table_size = mo.ui.slider(4, 40, step=4, value=16, label="places n", show_value=True)
    return (table_size,)


@app.cell(hide_code=True)
def _(table_size):
    _used = batching.places_used(table_size.value)
    _bars = step_drawings.used_bars(table_size.value, _used)
    mo.vstack([table_size, show.picture(_bars)])
    return


@app.cell(hide_code=True)
def _():
    mo.md(rf"""
    Why is an empty place so dear? Because a step costs nearly the same without it:
    {batching.decode_ms(1):.1f} ms with 1 row, {batching.decode_ms(32):.1f} ms with 32 (modelled).
    Nearly all of that is reading weights.

    **Tokens.** By the {term("roofline")}, a step of $B$ tokens takes its arithmetic or its memory
    traffic, whichever is longer, and a fixed $t_0$:

    $$t(B) = \max(t_F,\ t_M) + t_0 \quad [\text{{s}}]$$

    $$t_F = \frac{{2PB + \text{{attention}}}}{{F}} \quad
    \left[\frac{{\text{{FLOP}}}}{{\text{{FLOP/s}}}}\right]$$

    $$t_M = \frac{{W + \text{{KV}}}}{{M}} \quad
    \left[\frac{{\text{{bytes}}}}{{\text{{bytes/s}}}}\right]$$

    with $P$ parameters, $W$ bytes of weights, and the speeds $F$ and $M$ that are really reached.
    Everybody in a step waits for all of it. So a long prompt, computed in one piece, makes
    **everybody's** stream stand still. Cut in pieces ({term("chunked prefill")}), no gap is longer
    than $t(B)$. The price: a prompt of $N$ tokens beside $r$ streams takes
    $\lceil N / (B - r) \rceil$ steps to its first token. Here 32 chats stream, and a prompt of
    8,000 tokens comes in:
    """)
    return


@app.cell(hide_code=True)
def _():
    show.picture(*step_drawings.gap_bars(batching.gaps()))
    return


@app.cell(hide_code=True)
def _(lab):
    mo.vstack([
        mo.md(f"""
        ## 5. Read

        There is no phase called prefill and none called decode in what follows. A request has
        tokens; some are computed ({term("num_computed_tokens")}), some are on their way, the rest
        is to do. A step does some more of the rest. A prompt in pieces, an answer token by token, a
        stopped request from its start again: one rule. Those who run are asked first. (The body of
        `schedule` is for the lab's bug hunt, at the end.)
        """),
        show.show(Request.num_uncomputed_tokens.fget, Scheduler.schedule, state=lab),
        show.show(Scheduler._plan_running, state=lab),
        show.show(Scheduler._num_tokens_now, Scheduler._make_room, state=lab),
        mo.md("Then, with what is left, those who wait:"),
        show.show(Scheduler._plan_waiting, state=lab),
        mo.md("When the answer is there, counters move, tokens are appended, places open:"),
        show.show(Scheduler.update_from_output, state=lab),
        mo.md("And this is all that the old way is, a policy that bars newcomers:"),
        show.show(Static, state=lab),
        show.unchanged(
            "minivllm/engine/core.py",
            "minivllm/kvcache/kv_cache_manager.py",
            "minivllm/scheduler/preemption.py",
            "minivllm/executor/sim.py",
        ),
    ])  # fmt: skip
    return


@app.cell(hide_code=True)
def _():
    lab_page = show.lab_in_page(LESSON["lab"])
    mo.vstack([
        mo.md("""
        ## 6. Build

        The bodies that were left out are yours: `_plan_running`, `_plan_waiting` and
        `update_from_output`. The tests begin with one request and one step. They end with random
        company, in which each text must be what its request would get alone.
        """),
        lab_page,
    ])  # fmt: skip
    return (lab_page,)


@app.cell(hide_code=True)
def _(lab_page):
    lab = show.lab_result(LESSON["lab"], lab_page.value)
    mo.as_html(lab)
    return (lab,)


@app.cell(hide_code=True)
def _(lab):
    mine = show.use_my_code(lab)
    mo.as_html(mine)
    return (mine,)


@app.cell(hide_code=True)
def _(lab, mine):
    chosen = show.engine(mine.value, lab)
    _table = batching.beside_reference(chosen.package) if chosen.is_mine else ""
    mo.md(f"The pictures of act 3 run on {chosen.name}.\n\n{_table}")
    return (chosen,)


@app.cell(hide_code=True)
def _():
    measure = mo.ui.run_button(label="measure here")
    mo.vstack([
        mo.md("""
        ## 7. Measure

        **Modelled, before and after**: 64 people, 16 places, an H100. Any machine prints the same:

        ```sh
        minivllm simulate --experiment static-batching
        ```

        **Measured**: the first ten people of act 3, in 4 places, answered by the model `tiny` on
        the machine that runs this page. Before you press: in plain Python a row costs as much as
        the row before it, since nothing is shared. What will the new way gain there? (Half a
        minute or less; longer the first time.)
        """),
        measure,
    ])  # fmt: skip
    return (measure,)


@app.cell(hide_code=True)
def _(measure):
    mo.stop(mo.running_in_notebook() and not measure.value)
    mo.md(batching.measured())
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    Fewer steps make no machine faster by themselves. They do where a step costs nearly the same
    with one row as with many: that is the GPU's case, and the whole reason for batches.

    ## 8. Check, and go on
    """)
    return


@app.cell(hide_code=True)
def _():
    show.quizzes(r"""
    ? 30 chats stream. A prompt of 700 tokens is first in the queue; a step has 512 tokens, and
      places and memory are free. What is in the next step?
    + 30 tokens of chats and 482 of the prompt => Those who run go first; the newcomer gets what is
      left, and its first token of answer in the step that completes it.
    - 512 of the prompt, and the chats wait => Then every stream would stutter whenever somebody
      comes. Those who run are asked first.
    - 30 tokens of chats; the prompt waits for a step with 700 => A step never has 700. Without
      chunks it would wait for ever.
    ? All answers have the same length and all people come at once. What does the new way gain?
    + Hardly anything => Mean and longest are equal, so the law says 1 for the old way too.
    - The usual factor of two or three => That comes from answers that differ in length.
    - Shorter gaps between tokens => Who is in a step waits for it, the old way and the new.
    ? Why is nobody admitted in a step that had to stop somebody?
    + The newcomer would take the memory that was just made free => It was freed for those who run.
      Whoever comes in now is the last one in, and the next to be stopped.
    - The token budget is spent => Stopping somebody leaves tokens over.
    - The queue has to be sorted again => The stopped one goes to its head; nothing is sorted.
    ? First in the queue stands a request that needs 5 blocks; 3 are free. Behind it one needs 2.
    + Both wait => Whoever overtakes takes blocks, and the long one may wait for ever.
    - The second starts => The server would be fuller now, and the first might starve.
    - Somebody who runs is stopped for the first => Memory is taken back for those who run, never
      to let somebody in.
    ? You make steps four times smaller. What happens?
    + Shorter gaps; long prompts wait longer for their first token => t(B) falls, and there are
      more steps, each of which reads the weights.
    - Everything is faster => Each step reads all weights, however few tokens it has.
    - Other answers => The same tokens in other chunks: the text does not depend on it.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md(f"""
    **How the large engines do it** (read in their repositories; stored copies of 2026):

    * vLLM, `vllm/v1/core/sched/scheduler.py`: `Scheduler.schedule` has the same two halves, and
      admits nobody in a step that preempted. It asks for the blocks of this step's chunk only,
      where ours asks for the whole prompt's; and tokens count as computed as soon as they are
      planned (`_update_after_schedule`), where ours wait for the answer.
    * SGLang, `python/sglang/srt/managers/scheduler.py`: in `Scheduler.get_next_batch_to_run` a
      batch of newcomers goes *before* those who run; both in one step is an option
      (`is_mixed_chunk`). `PrefillAdder` in `schedule_policy.py` keeps memory back for what
      running answers may still need, and `ScheduleBatch.retract_decode` stops who has written
      least.

    **Other people's figures.** Orca (Yu et al., OSDI 2022), which began this, reports 36.9 times
    the throughput of FasterTransformer for GPT-3 175B at the same latency: its whole system on its
    load. A tutorial gives 50 ms to 15 ms at the 99th percentile for chunked prefill. Yours: act 4.

    **Bug hunt**, the lab's further part. Its starter has, for `Scheduler.schedule`, the loop that
    is drawn on whiteboards: *admit while there are blocks; then give each one that runs a chunk of
    its prompt, or one token*. It has three faults. (Who gets the last block? How large is a step
    with 20 newcomers? What becomes of one that was stopped on the way?)

    **Next**: how small should a step be, and whom to stop when memory ends? Lessons 10 and 11 are
    not written yet: this is the last one so far. If you came here by another way, see where the
    blocks come from: {show.lesson_link("05_paged_blocks", "lesson 05, Paged blocks")}.
    """)
    return


if __name__ == "__main__":
    app.run()
