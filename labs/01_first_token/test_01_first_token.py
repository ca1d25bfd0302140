"""Token by token: the loop over a model without memory, then the engine's own step."""

from labs.judge import Raised, Wrong
from labs.toy import EOS, ToyEngine, greedy, next_token, text_of
from minivllm.outputs import EngineCoreOutput, ModelRunnerOutput, Row, SchedulerOutput

GENERATE = "engine.greedy.generate_greedy"


class Model:
    """The model as the loop sees it: give it all tokens, it says the next. Notes each question."""

    def __init__(self, limit=40):
        self.limit, self.asked = limit, []

    def __call__(self, token_ids):
        self.asked.append(list(token_ids))
        if len(self.asked) > self.limit:
            raise Wrong(f"The model was asked {len(self.asked)} times, and there is no end of it.")
        return next_token(token_ids)


def generate(lab, prompt, max_tokens, eos=()):
    model = Model()
    got = lab.call(GENERATE, lab.lend(model, "__call__"), prompt, max_tokens, eos)
    return got, model.asked


def same_text(lab, got, due, says):
    lab.true(isinstance(got, list) and all(type(t) is int for t in got),
             "The answer is a list of token ids.", got=got)  # fmt: skip
    lab.same(text_of(got), text_of(due), says)


def prompt_of(lab, num=5):
    return [lab.random.randrange(EOS) for _ in range(num)]


def test_1_writes_the_text_of_the_model(lab):
    prompt = prompt_of(lab)
    got, _ = generate(lab, prompt, 6)
    same_text(lab, got[:6] if isinstance(got, list) else got, greedy(prompt, 6),
              f"The prompt is: {text_of(prompt)}. Six words are asked for, and the model goes on:",
    )  # fmt: skip


def test_2_stops_after_max_tokens_exactly(lab):
    prompt = prompt_of(lab)
    for max_tokens in (1, 2, 7, 0):
        got, _ = generate(lab, prompt, max_tokens)
        same_text(lab, got, greedy(prompt, max_tokens),
                  f"Asked for at most {max_tokens} words, it writes {max_tokens}.")  # fmt: skip


def ending_prompt(lab, at_least=2, at_most=9):
    """A prompt whose answer ends by itself, after so many words."""
    while True:
        prompt = prompt_of(lab)
        if at_least <= len(greedy(prompt, at_most + 1, [EOS])) <= at_most:
            return prompt


def test_3_stops_at_the_end_token_and_keeps_it(lab):
    for _ in range(3):
        prompt = ending_prompt(lab)
        got, _ = generate(lab, prompt, 20, [EOS])
        same_text(lab, got, greedy(prompt, 20, [EOS]),
                  "The full stop is the end token: the answer ends with it, and does not go on.",
    )  # fmt: skip
        got, _ = generate(lab, prompt, 20, [EOS + 1, EOS])
        same_text(lab, got, greedy(prompt, 20, [EOS]),
                  "A model may have several end tokens, here two: the full stop is the second.",
    )  # fmt: skip
        got, _ = generate(lab, prompt, 12, [])
        same_text(lab, got, greedy(prompt, 12),
                  "No end token is named here: a full stop is a word like any other.")  # fmt: skip


def test_4_gives_the_model_everything_every_time(lab):
    prompt = prompt_of(lab)
    _, asked = generate(lab, prompt, 4)
    due = [prompt + greedy(prompt, n) for n in range(4)]
    for number, (got, expected) in enumerate(zip(asked, due), 1):
        lab.same(text_of(got), text_of(expected),
                 f"The model remembers nothing. Question {number} brings the prompt and the "
                 f"{number - 1} words written before.")  # fmt: skip


def test_5_asks_once_for_each_token(lab):
    for max_tokens in (0, 1, 5):
        _, asked = generate(lab, prompt_of(lab), max_tokens)
        lab.same(len(asked), max_tokens,
                 f"For {max_tokens} words the model is asked {max_tokens} times: each question is "
                 f"a pass through all of its weights.")  # fmt: skip
    prompt = ending_prompt(lab)
    got, asked = generate(lab, prompt, 20, [EOS])
    lab.same(len(asked), len(got), "After the end token nothing is asked any more.")


def test_6_refuses_an_empty_prompt_and_leaves_the_rest_alone(lab):
    model = Model()
    with lab.raises("ValueError", "The prompt is empty: nothing comes after nothing."):
        lab.call(GENERATE, lab.lend(model, "__call__"), [], 4, [])
    lab.same(model.asked, [], "For an empty prompt nothing is asked.")
    for prompt in ((3, 1, 4), range(4)):
        says = "A prompt may be any sequence, a tuple for one: it is read, never changed."
        try:
            got, _ = generate(lab, prompt, 3)
        except Raised as error:
            if not {"TypeError", "AttributeError"} & set(error.bases):
                raise
            raise Wrong(says, expected=f"an answer to {prompt}", got=str(error)) from error
        same_text(lab, got, greedy(prompt, 3), says)


ROW = Row("a", 0, (1, 2), 1, table_ids=((1,),))
PLAN = SchedulerOutput(step=7, rows=(ROW,))
RESULT = ModelRunnerOutput(step=7, sampled=((5,),))
GAINED = [EngineCoreOutput("a", (5,), finish_reason="length")]


class Rooms:
    """What stands around a step. Each of the three notes here how it is called, so that one list
    has the order of all."""

    def __init__(self, plan=PLAN):
        self.calls = []
        self.scheduler, self.executor = Scheduler(plan, self.calls), Executor(self.calls)
        self.trace = Trace(self.calls)


class Scheduler:
    def __init__(self, plan, calls):
        self.plan, self.calls = plan, calls

    def schedule(self, now):
        self.calls.append(("schedule", now))
        return self.plan

    def update_from_output(self, plan, result):
        self.calls.append(("update_from_output", plan, result))
        return GAINED


class Executor:
    def __init__(self, calls):
        self.calls = calls

    def execute_model(self, plan):
        self.calls.append(("execute_model", plan))

    def sample_tokens(self, step, masks=None):
        self.calls.append(("sample_tokens", step))
        return RESULT


class Trace:
    def __init__(self, calls):
        self.calls = calls

    def step(self, now, plan, result):
        self.calls.append(("trace.step", now, plan, result))


def core_of(lab, rooms, with_trace=False):
    trace = lab.lend(rooms.trace, "step") if with_trace else None
    scheduler = lab.lend(rooms.scheduler, "schedule", "update_from_output", trace=trace)
    executor = lab.lend(rooms.executor, "execute_model", "sample_tokens")
    clock = lab.lend(Clock(), "__call__")
    return lab.new("engine.core.EngineCore", scheduler, executor, clock)


class Clock:
    """Says 2.5 first, and is a second later each time."""

    def __init__(self):
        self.now = 1.5

    def __call__(self):
        self.now += 1
        return self.now


def names(calls):
    return [call[0] for call in calls]


STEP = ["schedule", "execute_model", "sample_tokens", "update_from_output"]


def test_7_a_step_is_plan_execute_sample_update(lab):
    rooms = Rooms()
    core_of(lab, rooms).step()
    lab.same(names(rooms.calls), STEP,
             "One step: the scheduler plans, the executor executes and samples, the scheduler "
             "updates. Each once, in this order.")  # fmt: skip
    schedule, execute, sample, update = rooms.calls
    lab.same(schedule, ("schedule", 2.5), "The scheduler is told the time, by the engine's clock.")
    lab.same(execute, ("execute_model", PLAN), "What is executed is the plan.")
    lab.same(sample, ("sample_tokens", 7), "What is sampled is the plan's step, by its number.")
    lab.same(update, ("update_from_output", PLAN, RESULT),
             "The scheduler gets the plan again, with the result.")  # fmt: skip


def test_8_returns_what_the_scheduler_makes_of_the_result(lab):
    lab.same(core_of(lab, Rooms()).step(), GAINED,
             "The scheduler says what each request gained: that is what a step returns.",
    )  # fmt: skip


def test_9_an_empty_plan_asks_the_executor_for_nothing(lab):
    rooms = Rooms(SchedulerOutput(step=7))
    got = core_of(lab, rooms).step()
    lab.same(names(rooms.calls), ["schedule"],
             "The plan is empty: nobody waits, nobody runs. So nothing is executed.")  # fmt: skip
    lab.same(got, [], "Nobody gained anything: an empty list.")


def test_10_a_plan_without_rows_may_still_have_work(lab):
    for plan in (SchedulerOutput(step=7, finished_ids=("a",)),
                 SchedulerOutput(step=7, copies=((1, 2),))):  # fmt: skip
        rooms = Rooms(plan)
        core_of(lab, rooms).step()
        lab.same(names(rooms.calls), STEP,
                 "The plan has no rows, but something to forget or to copy: it runs.")  # fmt: skip


def test_11_the_trace_hears_of_each_step(lab):
    rooms = Rooms()
    core_of(lab, rooms, with_trace=True).step()
    lab.true(("trace.step", 2.5, PLAN, RESULT) in rooms.calls,
             "This engine has a trace. It hears when the step was planned, its plan and its "
             "result.", got=names(rooms.calls))  # fmt: skip
    rooms = Rooms(SchedulerOutput(step=7))
    core_of(lab, rooms, with_trace=True).step()
    lab.same(names(rooms.calls), ["schedule"], "An empty plan is nothing to tell of.")


def test_12_the_engine_talks(lab):
    engine = ToyEngine(lab, budget=6, eos=[EOS])
    prompts = {name: prompt_of(lab, 4 * number) for number, name in enumerate("abc", 1)}
    for name, prompt in prompts.items():
        engine.add(name, prompt, 9)
    engine.run(60, "Three requests of at most 9 words should have ended long ago.")
    for name, prompt in prompts.items():
        lab.same(text_of(engine.outputs[name]), text_of(greedy(prompt, 9, [EOS])),
                 f"The real scheduler plans, the judge's model computes. Request {name} says "
                 f"something else than alone:", engine.timeline())  # fmt: skip
    numbers = [plan.step for plan in engine.model.plans]
    lab.same(numbers, list(range(1, len(numbers) + 1)),
             "The scheduler plans once for each step that is executed. The steps that reached the "
             "model:")  # fmt: skip
