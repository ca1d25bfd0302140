import marimo

__generated_with = "0.25.2"
app = marimo.App(app_title="The first token")

with app.setup(hide_code=True):
    import marimo as mo

    from lessons import loop, primer, rooms, show, walk
    from lessons.bars import bars
    from lessons.glossary import term
    from minivllm.engine.core import EngineCore
    from minivllm.engine.greedy import generate_greedy
    from minivllm.executor.base import Executor
    from minivllm.metrics.trace import Trace
    from minivllm.outputs import ModelRunnerOutput, Row, SchedulerOutput
    from minivllm.sampling_params import SamplingParams
    from minivllm.scheduler.scheduler import Scheduler

    LESSON = {
        "number": 1,
        "slug": "first_token",
        "title": "The first token",
        "part": "I. One request",
        "question": "What happens between a prompt and its first word, and why does the second "
        "word come so much sooner?",
        "needs": [],
        "reads": [
            "minivllm/engine/greedy.py",
            "minivllm/engine/core.py",
            "minivllm/outputs.py",
        ],
        "lab": "first_token",
        "runs_on": "browser",
        "minutes": 40,
    }
    FIRST = "One sunny day, a little fox"


@app.cell(hide_code=True)
def _():
    show.header(LESSON)
    return


@app.cell(hide_code=True)
def _():
    llm = loop.load()
    mo.md(f"""
    ## 1. The question

    You ask, and for a moment nothing happens. Then words come, one after the other, much faster.
    Whatever made you wait was not the writing. In this lesson you measure that moment on this
    machine, write the few lines that every chatbot is made of, and follow one request through an
    engine, door by door.

    One number before we start: written the obvious way, an answer of 200 words to a prompt of 7
    costs {loop.times_the_work(7, 200):.0f} times the work that it has to. You will write it the
    obvious way first.

    There is a real language model in this page, a very small one: {primer.num_weights(llm):,}
    numbers, where large ones have a million times as many. Give it the beginning of a story.
    """)
    return (llm,)


@app.cell(hide_code=True)
def _():
    beginning = mo.ui.text(
        FIRST, label="A story begins (change it, and press Enter):", max_length=60, full_width=True
    )
    beginning
    return (beginning,)


@app.cell(hide_code=True)
def _(beginning, llm):
    prompt = beginning.value.strip() or FIRST
    seen = primer.look(llm, prompt)
    prompt_ids = [token_id for token_id, _ in seen.tokens]
    mo.Html(primer.primer(seen))
    return prompt, prompt_ids, seen


@app.cell(hide_code=True)
def _(llm, prompt_ids):
    (_out,) = llm.generate([prompt_ids], SamplingParams(temperature=0, max_tokens=30))
    answer_ids = _out.outputs[0].token_ids
    is_over = _out.outputs[0].finish_reason == "stop"
    press = show.Presses("Ask for the next token")
    _live = show.standing("The button is in the live lesson: press *Run it here*, above.")
    _text = mo.md(f"""
    That is all a model does: **one token**. Everything that looks like writing is somebody who puts
    the token at the end and asks again. For a moment, be that somebody. {_live}
    """)
    mo.vstack([_text, press])
    return answer_ids, is_over, press


@app.cell(hide_code=True)
def _(answer_ids, is_over, llm, press, prompt, prompt_ids):
    _new = list(answer_ids[: press.value])
    _ids = [*prompt_ids, *_new]
    _said = primer.asked(press.value, len(answer_ids), len(_ids), is_over)
    _shown = primer.story(prompt, llm.tokenizer.decode(_new)) + f"<p class='tt-box'>{_said}</p>"
    if len(_new) < len(answer_ids):
        _shown += primer.scores_svg(primer.look_after(llm, prompt, _ids))
    mo.Html(_shown)
    return


@app.cell(hide_code=True)
def _():
    guess = show.predict(
        "The first gap is how many times as long as the second?", low=1, high=30, start=1
    )
    _text = mo.md(f"""
    ## 2. Predict

    Now an engine asks, and we look at the clock. From the call to the first token is one gap; from
    the first token to the second is another. (People who serve models call the first one
    {term("TTFT", "time to first token")}.) It is the same model for both.
    """)
    mo.vstack([_text, guess])
    return (guess,)


@app.cell(hide_code=True)
def _(guess, llm, prompt, prompt_ids):
    mo.stop(guess.value is None and mo.running_in_notebook(), show.reveal(None, "", ""))
    _first, _second = loop.first_two(llm, prompt)
    _num = len(prompt_ids)
    _bars = bars(
        [
            ("until the first token", 1e3 * _first, "prefill"),
            ("from the first to the second", 1e3 * _second, "decode"),
        ],
        unit="ms",
        title="Two gaps on this machine",
        caption=f"The median of five runs each, for {prompt!r}. {loop.machine()}.",
    )
    _because = f"""
    Before the first token the model went through all {_num} tokens of the prompt; before the
    second through one, because the engine remembers the rest. Plain Python takes the tokens one
    by one, so the model's work stands {_num} to 1. A clock does not say exactly that: what an
    engine does besides, the same for both, makes them less unlike, and whatever else this machine
    did, either of them longer. A GPU takes a prompt's tokens side by side, and waits for another
    reason: lesson 02. Make the beginning of the story longer, and look again.
    """
    show.reveal(guess.value, f"{_first / _second:.1f} times", _because, _bars)
    return


@app.cell(hide_code=True)
def _():
    editor = mo.ui.code_editor(
        loop.STARTER, language="python", min_height=150, label="Your loop"
    ).form(submit_button_label="Run my loop", bordered=False)
    _text = mo.md(f"""
    Two words for the rest of the course, and two colours: computing a prompt is {term("prefill")},
    computing one new token is {term("decode")}.

    ## 3. Play

    **Your own lines.** Here `step` is the model: `step(ids)` gives the id of the token that comes
    after the tokens `ids`. It remembers nothing from one call to the next. `prompt` is a list of
    ids. Write the lines that are missing, and read what your loop writes.
    """)
    mo.vstack([_text, editor])
    return (editor,)


@app.cell(hide_code=True)
def _(editor, llm, prompt):
    if editor.value is None:
        _shown = "<p class='tt-box'>What your loop writes appears here.</p>"
    else:
        _written = loop.run(editor.value, "my_loop", llm, prompt, 12)
        _praise = "" if _written.problem else "This is a text generator, and you wrote it. "
        _asked = ", ".join(str(q.num_tokens) for q in _written.questions) or "none"
        _shown = primer.story(prompt, _written.text, _written.problem)
        _shown += f"<p class='tt-box'>{_praise}Tokens in each question: {_asked}.</p>"
    mo.Html(_shown)
    return


@app.cell(hide_code=True)
def _(chosen, prompt):
    _llm = loop.load(chosen("entrypoints.llm.LLM"))
    _params = chosen("sampling_params.SamplingParams")
    _params = _params(temperature=0, max_tokens=3, ignore_eos=True)
    _journey = walk.record(_llm, prompt, _params)
    _text = mo.md(f"""
    **Through the rooms.** Your loop serves one reader. An engine serves many, so it divides the
    work: a {term("scheduler")} decides whose tokens are computed next, an
    {term("Executor", "executor")} computes them, and neither knows how the other does it. All
    that passes between them are {term("message", "messages")}: numbers, strings, tuples. The
    dashed line is the door between the half that decides and the half that computes.

    Take one request from stop 1 to stop {len(_journey.stops)}: *Next*, or a point of the row, or
    the arrow keys on it. Nothing is staged: these are the messages of one real run, by the step of
    {chosen.name}. Pause at stop
    {_journey.find("SchedulerOutput", 1)}: the whole prompt goes in. At stop
    {_journey.find("ModelRunnerOutput", 1)}: one number comes out. At stop
    {_journey.find("SchedulerOutput", 2)}: from now on one token goes in, all else is remembered.
    """)
    mo.vstack([_text, mo.Html(rooms.page(_journey))])
    return


@app.cell(hide_code=True)
def _(seen):
    num = mo.ui.slider(
        1, 200, value=12, label="n, tokens of the answer", show_value=True, full_width=True
    )
    _text = mo.md(rf"""
    ## 4. The law

    Count tokens that go through the model. Each costs about the same: one multiplication and one
    addition for each of the {seen.num_weights:,} weights. The prompt has $p$ tokens, the answer
    $n$.

    | tokens through the model | for token $n$ | for all $n$ |
    |:--|:--|:--|
    | without memory: your loop | $p + n - 1$ | $n\,p + n(n-1)/2$ |
    | with memory: the engine | $1$ (for the first: $p$) | $p + n - 1$ |

    The first row has a square in it, from $n(n-1)/2$: a long answer that becomes twice as long
    takes four times the work.
    """)
    mo.vstack([_text, num])
    return (num,)


@app.cell(hide_code=True)
def _(llm, num, prompt, prompt_ids):
    _p, _n = len(prompt_ids), num.value
    _without, _with = loop.work_without_memory(_p, _n), loop.work_with_memory(_p, _n)
    _bars = bars(
        [("without memory", _without, "prefill"), ("with memory", _with, "decode")],
        unit="tokens",
        title=f"Work for {_n} tokens of answer",
        caption=f"By the law, for p = {_p}: {loop.times_the_work(_p, _n):.1f} times the work.",
        digits=0,
    )
    _model = loop.Memoryless(llm)
    generate_greedy(_model, prompt_ids, 8)
    _asked = sum(question.num_tokens for question in _model.questions)
    _params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    _planned = walk.record(llm, prompt, _params).num_computed
    _text = mo.md(f"""
    Does it agree with what runs? For n = 8 the law says {loop.work_without_memory(_p, 8)} without
    memory and {loop.work_with_memory(_p, 8)} with it. Counted in real runs: {_asked} in the
    questions of a loop, {_planned} in the engine's plans.
    """)
    mo.vstack([show.picture(_bars), _text])
    return


@app.cell(hide_code=True)
def _(lab):
    _text = mo.md("""
    ## 5. Read

    Two functions of the engine are this lesson: the loop, and one step of the engine. You write
    both in the lab, so their bodies are closed here.
    """)
    _between = mo.md("""
    What passes the door, once for each request in a step (`Row`), and what comes back. You have
    seen both on the way: look for `SchedulerOutput` and `ModelRunnerOutput` in the walk.
    """)
    mo.vstack(
        [
            _text,
            show.show(generate_greedy, EngineCore.step, state=lab),
            _between,
            show.show(Row, ModelRunnerOutput),
            show.unchanged("scheduler/", "kvcache/", "executor/plain.py", "tokenizer/"),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    lab_page = show.lab_in_page(LESSON["lab"])
    _live = show.standing(
        "In the live lesson (*Run it here*, above) all of it is done in the page."
    )
    _text = mo.md(f"""
    ## 6. Build

    The lab: `generate_greedy`, which is your loop with two more rules (an empty prompt, an end
    token), and `EngineCore.step`, the four things that a step does. A test that fails shows the
    text that came out beside the text that should have.

    These are the calls that a step is made of, with `self.clock()`, which gives the time, and
    `plan.step`, a plan's number. Which of them when, and in which order, is the lab. `self.trace`
    is `None` where nobody wants one. {_live}
    """)
    _calls = show.calls_of(
        {
            "self.trace.step": Trace.step,
            "self.executor.sample_tokens": Executor.sample_tokens,
            "self.scheduler.update_from_output": Scheduler.update_from_output,
            "plan.is_empty": SchedulerOutput.is_empty,
            "self.executor.execute_model": Executor.execute_model,
            "self.scheduler.schedule": Scheduler.schedule,
        }
    )
    mo.vstack([_text, _calls, lab_page])
    return (lab_page,)


@app.cell(hide_code=True)
def _(lab_page):
    lab = show.lab_result(LESSON["lab"], lab_page.value)
    lab
    return (lab,)


@app.cell(hide_code=True)
def _(lab):
    mine = show.use_my_code(lab)
    mine
    return (mine,)


@app.cell(hide_code=True)
def _(lab, llm, mine, prompt, prompt_ids):
    chosen = show.engine(mine.value, lab)
    _ids = chosen("engine.greedy.generate_greedy")(
        loop.Memoryless(llm), prompt_ids, 12, llm.tokenizer.eos_token_ids
    )
    mo.Html(
        f"<p class='tt-box'>Written by {chosen.name}. The switch also changes whose step takes the "
        f"walk of act 3, and whose loop runs the race of act 7.</p>"
        + primer.story(prompt, llm.tokenizer.decode(_ids))
    )
    return (chosen,)


@app.cell(hide_code=True)
def _():
    go = mo.ui.run_button(label="Race")
    _text = mo.md("""
    ## 7. Measure

    The same answer twice, token by token: by a loop over a model without memory, and by the
    engine. Then single questions of 1 token and one of 200. All of it takes some seconds,
    in a browser up to half a minute. In a terminal:
    `python -m lessons.loop "One sunny day, a little fox"`
    """)
    mo.vstack([_text, go])
    return (go,)


@app.cell(hide_code=True)
def _(chosen, go, llm, prompt):
    mo.stop(not go.value and mo.running_in_notebook(), mo.md("*Nothing measured yet.*"))
    _race = loop.race(llm, chosen("engine.greedy.generate_greedy"), prompt, 12)
    show.picture(*_race.pictures(f"loop: {chosen.name}"))
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    **Without memory, after a prompt of one token, word 200 takes 200 times the work of word 1**
    ($p + n - 1$ with $p = 1$), on a laptop and on the largest GPU alike. A clock may say more than
    200, since a token also looks at those before it, which the law leaves out, or less, since a
    question costs something whatever its length; and it jumps where a machine has much else to do.
    The engine does not pay it: it keeps something for each token that it has computed, and you saw
    where, in the blocks of the room `kvcache`. What it keeps, and what that costs, is lesson 03;
    why a GPU is quick with a prompt, lesson 02.

    ## 8. Check and go on
    """)
    return


@app.cell(hide_code=True)
def _():
    show.quizzes(r"""
    ? A model has answered a question. What does it know of it afterwards?
    + Nothing. => Its weights never change while it serves. What looks like memory is kept around
      the model: the text, and the engine's KV.
    - All of it: it has learnt from its own answer. => Serving reads weights; learning changes them.
    - The last few tokens. => Not even those: each call of `step` brings every token.

    ? A prompt has 100 tokens, the answer 50. How many tokens does an engine with memory compute?
    + 149 => 100 for the first token of the answer, and one for each of the 49 after it. The last
      one is written and never computed: nobody asks what comes after it.
    - 150 => Nearly. What comes after the last token does not matter to anybody.
    - 6225 => That is the loop without memory: 50 x 100 + 50 x 49 / 2.

    ? Who chooses the next token?
    + The executor, from the model's scores. => As the request wants it: `temperature=0` takes the
      best, and lesson 04 draws.
    - The model: what it gives is the token. => It gives a score to every token, and chooses none.
    - The scheduler. => It never sees a score. It gets a token id back.

    ? What passes through the door between deciding and computing?
    + Numbers, strings and tuples. => In frozen messages, so either side can be replaced: by a GPU,
      by plain Python, by a simulation.
    - Tensors, since the model computes with them. => They stay behind it. You saw every message of
      a run: ids, positions.
    - The request's text. => Text ends at the tokenizer. After it there are only ids.

    ? A step's plan has no rows. May the engine skip it?
    + Only if nothing else is in it. => It may still tell the executor to forget a request, as at
      the last stop of your walk.
    - Yes, there is nothing to compute. => Then the executor keeps finished requests.
    - No, a step always runs. => With nothing to compute, forget or move there is no step at all.
    """)
    return


@app.cell(hide_code=True)
def _():
    mo.md(f"""
    **Elsewhere.** The same step in the engines of the field, as their sources stood in November
    2026:

    * vLLM, `vllm/v1/engine/core.py`, `EngineCore.step`: the same four calls. The core lives in a
      process of its own and gets its messages over sockets; `step_with_batch_queue` keeps several
      steps under way.
    * SGLang, `python/sglang/srt/managers/scheduler.py`, `Scheduler.event_loop_normal`: the
      scheduler owns the loop (`get_next_batch_to_run`, `run_batch`, `process_batch_result`), and
      tokenizer and detokenizer are processes. `event_loop_overlap` plans the next step while this
      one runs.

    **Further.** Give the model the end of its own story as a new beginning: where does it lose
    the thread, and what can it still know there? And what would `step` have to return, so that a
    loop could follow the two best continuations and keep the better one?

    **Next** by number is 02 `roofline`, why the same GPU is busy with a prompt and bored with an
    answer. Lessons 02 to 04 are not written yet: go on with
    {show.lesson_link("05_paged_blocks", "05, Paged blocks")}, the memory of an engine.
    """)
    return


if __name__ == "__main__":
    app.run()
