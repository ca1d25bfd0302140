"""A scheduler step by step: who runs, for how many tokens, and what a step's answer changes."""

from labs.judge import Raised, Wrong
from labs.runner import further
from labs.toy import EOS, ToyEngine, greedy, next_token, text_of
from minivllm.outputs import ModelRunnerOutput


def run(lab, engine, max_steps, says="All requests should have ended long ago."):
    """Step to the end; the scheduler's own check() after each step."""
    steps = 0
    while engine.core.has_unfinished_requests:
        if steps == max_steps:
            raise Wrong(says, picture=engine.timeline())
        engine.step()
        engine.scheduler.check()
        steps += 1
    return steps


def rows(engine, step=-1):
    """(request, first position, tokens) of a step's rows."""
    return [(r.request_id, r.start, len(r.token_ids)) for r in engine.model.plans[step].rows]


def started(engine):
    """Requests in the order in which they were introduced to the model."""
    return [new.request_id for plan in engine.model.plans for new in plan.new_requests]


def test_1_one_request_one_step(lab):
    engine = ToyEngine(lab)
    engine.add("a", [3, 1, 4], 5)
    outputs = engine.core.step()
    lab.true(engine.model.plans, "A request waits and everything is free: the step has a plan.")
    lab.same(
        rows(engine), [("a", 0, 3)],
        "Request a waits with 3 tokens, and there is room for all: the first step computes all 3, "
        "from position 0 on.",
    )  # fmt: skip
    lab.same(
        [(o.request_id, o.new_token_ids) for o in outputs], [("a", (next_token([3, 1, 4]),))],
        "The step returns what each request gained: request a, its first token.",
    )  # fmt: skip
    lab.same([r.request_id for r in engine.scheduler.running], ["a"], "Request a runs now.")


def test_2_running_requests_go_first_and_in_their_order(lab):
    engine = ToyEngine(lab, budget=2)
    says = "A step computes at most 2 tokens. "
    engine.add("a", [1], 9)
    engine.step()
    engine.add("b", [2], 9)
    engine.step()
    lab.same(rows(engine), [("a", 1, 1), ("b", 0, 1)],
             says + "Request a runs and needs one of them, so b starts with the other.",
             engine.timeline())  # fmt: skip
    engine.add("c", [3], 9)
    engine.step()
    lab.same(rows(engine), [("a", 2, 1), ("b", 1, 1)],
             says + "Requests a and b run and need both, in the order of their admission; c waits.",
             engine.timeline())  # fmt: skip


def test_3_a_prompt_cut_short_samples_nothing(lab):
    engine = ToyEngine(lab, budget=4)
    engine.add("a", range(10), 3)
    for _ in range(2):
        outputs = engine.core.step()
        lab.same(
            [o.new_token_ids for o in outputs], [()],
            "The prompt has 10 tokens and a step computes 4: as long as the prompt is not "
            "finished there is no new token, only progress.", engine.timeline(),
        )  # fmt: skip
    (request,) = engine.scheduler.running
    lab.same(request.num_tokens, 10, "The request still has its prompt, and nothing more.")


def test_4_the_counter_moves_by_what_was_computed(lab):
    engine = ToyEngine(lab, budget=4)
    engine.add("a", range(10), 3)
    (request,) = engine.scheduler.waiting
    for number, (planned, done) in enumerate(((4, 4), (4, 8)), 1):
        plan = engine.scheduler.schedule(0.0)
        lab.same(
            (request.num_computed_tokens, request.num_in_flight_tokens), (done - planned, planned),
            f"Step {number} is planned and not answered: its {planned} tokens are in flight, and "
            f"the computed count has not moved. (computed, in flight):",
        )  # fmt: skip
        engine.model.execute_model(plan)
        engine.scheduler.update_from_output(plan, engine.model.sample_tokens(plan.step))
        lab.same(
            (request.num_computed_tokens, request.num_in_flight_tokens), (done, 0),
            f"The answer of step {number} is in: its {planned} tokens are computed, and none is "
            f"in flight. (computed, in flight):",
        )  # fmt: skip


def test_5_the_step_that_completes_a_prompt_gives_its_first_token(lab):
    engine = ToyEngine(lab, budget=4)
    engine.add("a", range(10), 3)
    engine.step()
    engine.step()
    outputs = engine.core.step()
    lab.same(
        [o.new_token_ids for o in outputs], [(next_token(range(10)),)],
        "The third step computes the last 2 tokens of the prompt of 10. So it also gives the "
        "first token of the answer.", engine.timeline(),
    )  # fmt: skip
    (request,) = engine.scheduler.running
    lab.same(request.token_ids[10:], [next_token(range(10))], "It is appended to the request.")


def test_6_never_more_than_the_budget_nor_max_num_seqs(lab):
    budget, seats = 7, 3
    engine = ToyEngine(lab, budget=budget, max_num_seqs=seats)
    for number in range(8):
        engine.add(f"r{number}", range(lab.random.randint(1, 3)), lab.random.randint(4, 6))
    for _ in range(60):
        if not engine.core.has_unfinished_requests:
            break
        engine.step()
        plan = engine.model.plans[-1]
        lab.true(plan.num_tokens <= budget,
                 f"A step computes at most {budget} tokens, all requests together.",
                 engine.timeline("tokens by step"), got=plan.num_tokens)  # fmt: skip
        lab.true(len(plan.rows) <= seats and len(engine.scheduler.running) <= seats,
                 f"At most {seats} requests run at once (max_num_seqs).",
                 engine.timeline(), got=len(plan.rows))  # fmt: skip


def test_7_stops_at_max_tokens_and_at_eos_exactly(lab):
    ending = next(p for p in range(9999) if EOS in greedy([p], 12) and EOS not in greedy([p], 2))
    for max_tokens in (1, 2, 12):
        for more in ({}, {"ignore_eos": True}, {"min_tokens": min(max_tokens, 11)}):
            engine = ToyEngine(lab, eos=[EOS])
            engine.add("a", [ending], max_tokens, **more)
            engine.run(30, "One request of a few tokens should have ended long ago.")
            eos = () if more.get("ignore_eos") else (EOS,)
            due = greedy([ending], max_tokens, eos, more.get("min_tokens", 0))
            asked = ", ".join(f"{k}={v}" for k, v in {"max_tokens": max_tokens, **more}.items())
            lab.same(
                text_of(engine.outputs["a"]), text_of(due),
                f"Asked for {asked}. The answer ends after the token that ends it (the full stop "
                f"is the end token), and not one later.", engine.timeline(),
            )  # fmt: skip
            reason = (
                "stop" if due[-1] in eos and len(due) >= more.get("min_tokens", 0) else "length"
            )
            lab.same(engine.reasons["a"], reason, f"Asked for {asked}. This is why it ended.")


def test_8_two_that_end_in_one_step_both_leave_and_give_their_blocks_back(lab):
    engine = ToyEngine(lab)
    for name, length, max_tokens in (("c", 9, 4), ("a", 5, 2), ("b", 3, 1)):
        engine.add(name, range(length), max_tokens)
        ended = engine.step()
    says = "Requests c, a and b started in steps 1, 2 and 3 and may write 4, 2 and 1 tokens: "
    lab.same(sorted(ended), ["a", "b"], says + "a and b end in step 3.", engine.timeline())
    running = [r.request_id for r in engine.scheduler.running]
    lab.same(running, ["c"], says + "a and b end in step 3, and then only c runs.")
    lab.same(list(engine.kv.tables), ["c"], says + "after step 3 only c owns blocks.")
    lab.same(engine.kv.pool.num_free, 63 - 3, says + "after step 3 all but c's 3 blocks are free.")
    engine.step()
    lab.same(engine.kv.pool.num_free, 63, says + "after step 4 all blocks are free.")
    engine.scheduler.check()
    one_that_fails(lab)


def one_that_fails(lab):
    engine = ToyEngine(lab)
    engine.add("a", [1, 2], 4)
    engine.step()
    engine.add("b", [3, 4], 4)
    plan = engine.scheduler.schedule(0.0)
    token = next_token([3, 4])
    result = ModelRunnerOutput(plan.step, ((), (token,)), errors=(("a", "its scores are NaN"),))
    outputs = engine.scheduler.update_from_output(plan, result)
    says = "Requests a and b were planned, and result.errors says that a's row failed. "
    lab.same([(o.request_id, o.new_token_ids, o.finish_reason, o.error) for o in outputs],
             [("a", (), "error", "its scores are NaN"), ("b", (token,), None, None)],
             says + "So a ends with that error, and b gains its token. (request, its new tokens, "
             "why it ended, its error):")  # fmt: skip
    lab.same(list(engine.kv.tables), ["b"], says + "After that only b owns blocks.")
    engine.scheduler.check()


def test_9_the_last_free_place_is_used_the_step_it_opens(lab):
    engine = ToyEngine(lab, max_num_seqs=2)
    engine.add("a", [1], 2)
    engine.add("b", [2], 5)
    engine.add("c", [3], 2)
    engine.step()
    engine.step()
    lab.same([r[0] for r in rows(engine)], ["a", "b"], "There are two places, and both are used.",
             engine.timeline())  # fmt: skip
    engine.step()
    lab.same(
        [r[0] for r in rows(engine)], ["b", "c"],
        "Two requests at once. Request a ended in step 2, so c takes its place in step 3, in the "
        "middle of b's answer: nobody waits for a batch to end.", engine.timeline(),
    )  # fmt: skip


def test_10_a_request_aborted_between_plan_and_result_is_harmless(lab):
    engine = ToyEngine(lab)
    engine.add("a", [1, 2], 4)
    engine.step()
    engine.add("b", [3, 4], 4)
    plan = engine.scheduler.schedule(0.0)
    engine.model.execute_model(plan)
    engine.core.abort("a")
    outputs = engine.scheduler.update_from_output(plan, engine.model.sample_tokens(plan.step))
    says = "Requests a and b were planned; a was aborted before the answer came. "
    lab.same([(o.request_id, o.new_token_ids) for o in outputs], [("b", (next_token([3, 4]),))],
             says + "What came for a is ignored, and b gains its own token.")  # fmt: skip
    engine.outputs["b"] += outputs[0].new_token_ids
    run(lab, engine, 10)
    lab.same(text_of(engine.outputs["b"]), text_of(greedy([3, 4], 4)), says + "b goes on alone.")
    lab.same(engine.core.step(), [], "Nobody is left: a step does nothing, and returns nothing.")


def test_11_a_head_that_does_not_fit_is_not_overtaken(lab):
    engine = ToyEngine(lab, num_blocks=7, block_size=4, budget=32)
    engine.add("a", range(18), 2)  # five of the six blocks
    engine.step()
    engine.add("long", range(30, 38), 1)  # two blocks, and one is free
    engine.add("short", [9], 1)  # would fit
    engine.step()
    lab.same(
        [r[0] for r in rows(engine)], ["a"],
        "One block is free. The head of the queue needs two, the request behind it only one. "
        "Whoever overtakes the head leaves it waiting, perhaps for ever.", engine.timeline(),
    )  # fmt: skip
    run(lab, engine, 9)
    lab.same(started(engine), ["a", "long", "short"],
             "When a has ended there is room for both. They start in the order they came.",
             engine.timeline())  # fmt: skip


class LastFirst:
    """A policy: who came last goes first, and one of them may not start."""

    def __init__(self, barred):
        self.barred, self.served_ids = barred, []

    def order(self, waiting, now):
        return list(reversed(waiting))

    def rank(self, request):
        return 0

    def may_admit(self, request, plan):
        return "not now" if request.request_id == self.barred else None

    def served(self, request, num_tokens):
        self.served_ids.append(request.request_id)


def test_12_the_policy_says_who_goes_first_and_who_may_not(lab):
    policy = LastFirst(barred="b")
    lent = lab.lend(policy, "order", "rank", "may_admit", "served")
    engine = ToyEngine(lab, policy=lent)
    for name in "abcd":
        engine.add(name, [1, 2], 3)
    for _ in range(3):
        engine.step()
    lab.same(
        started(engine), ["d", "c"],
        "The policy's order is d, c, b, a, and it bars b for now. So d and c start, and a does "
        "not overtake b.", engine.timeline(),
    )  # fmt: skip
    policy.barred = None
    run(lab, engine, 20)
    lab.same(sorted(set(policy.served_ids)), list("abcd"),
             "The policy hears of each request that is served (_plan_row tells it).")  # fmt: skip


def company(lab, engine, num_requests, num_steps=25):
    """Requests for an engine, and when each arrives: {step: [(name, prompt, max_tokens)]}."""
    arrivals = {}
    for number in range(num_requests):
        prompt = [lab.random.randrange(50) for _ in range(lab.random.randint(1, 14))]
        one = (f"r{number}", prompt, lab.random.randint(1, 10))
        arrivals.setdefault(lab.random.randrange(num_steps), []).append(one)
    return arrivals


def serve(lab, engine, arrivals, max_steps):
    """Serve them to the end; in which step each one ended."""
    steps, ends = 0, {}
    while arrivals.keys() - set(range(steps)) or engine.core.has_unfinished_requests:
        if steps == max_steps:
            raise Wrong(f"After {max_steps} steps some requests still wait or run: "
                        f"{sorted(engine.outputs.keys() - engine.reasons.keys())}.",
                        picture=engine.timeline())  # fmt: skip
        for name, prompt, max_tokens in arrivals.get(steps, ()):
            engine.add(name, prompt, max_tokens)
        steps += 1
        ends |= dict.fromkeys(engine.step(), steps)
        engine.scheduler.check()
    return ends


def test_13_nobody_waits_for_ever(lab):
    engine = ToyEngine(lab, num_blocks=3, block_size=4)
    engine.add("a", [1, 2], 3)
    engine.step()
    engine.add("b", [3, 4, 5, 6], 3)
    engine.step()
    engine.step()
    lab.same(
        rows(engine), [("a", 3, 1)],
        "Requests a and b have the only two blocks. In step 3 b needs another and there is none: "
        "b itself is stopped and waits, and only a goes on.", engine.timeline(),
    )  # fmt: skip
    run(lab, engine, 20)
    lab.same(text_of(engine.outputs["b"]), text_of(greedy([3, 4, 5, 6], 3)),
             "Request b was stopped and came back: its text is the same.")  # fmt: skip
    engine = ToyEngine(lab, num_blocks=4, block_size=4)
    engine.add("a", [1, 2], 6)
    engine.step()
    engine.add("b", [4, 5, 6, 7, 8], 5)
    for _ in range(3):
        engine.step()
    lab.same(
        rows(engine), [("a", 4, 1)],
        "There are three blocks: a has one and b two. In step 4 a needs another: b, which came "
        "later, is stopped for it and has no row in this step.", engine.timeline(),
    )  # fmt: skip
    engine = ToyEngine(lab, num_blocks=9, block_size=4, max_num_seqs=5, budget=9)
    arrivals = company(lab, engine, 14)
    serve(lab, engine, arrivals, 600)
    stopped = sum(len(plan.preempted_ids) for plan in engine.model.plans)
    lab.same(len(engine.reasons), 14,
             f"Eight blocks for 14 requests ({stopped} times one was stopped to make room): all "
             f"of them end, some day.")  # fmt: skip
    lab.same(engine.kv.pool.num_free, 8, "All have ended: all blocks are free.")


def due_ends(arrivals, budget, seats):
    """In which step each request ends, with memory for all: the plainest continuous batching."""
    waiting, running, ends, step = [], [], {}, 0
    while waiting or running or any(late >= step for late in arrivals):
        for name, prompt, max_tokens in arrivals.get(step, ()):
            waiting.append({"name": name, "todo": len(prompt), "to_write": max_tokens})
        left = budget
        for request in [*running, *waiting]:
            if request in waiting:
                if left == 0 or len(running) == seats:
                    break
                waiting.remove(request)
                running.append(request)
            request["now"] = min(request["todo"], left)
            left -= request["now"]
        step += 1
        for request in list(running):
            request["todo"] -= request["now"]
            if request["todo"] == 0:
                request["todo"], request["to_write"] = 1, request["to_write"] - 1
                if request["to_write"] == 0:
                    running.remove(request)
                    ends[request["name"]] = step
    return ends


def test_14_any_company_gives_the_solo_tokens_as_soon_as_can_be(lab):
    engine = ToyEngine(lab, num_blocks=64, max_num_seqs=6, budget=20)
    arrivals = company(lab, engine, 16, num_steps=8)
    ends = serve(lab, engine, arrivals, 400)
    for name, prompt, max_tokens in (one for some in arrivals.values() for one in some):
        lab.same(text_of(engine.outputs[name]), text_of(greedy(prompt, max_tokens)),
                 f"Request {name} says something else in company than alone.")  # fmt: skip
    for name, due in due_ends(arrivals, 20, 6).items():
        lab.same(ends[name], due,
                 f"There is memory for all, so whenever budget and a place are free the next "
                 f"request starts. The step in which request {name} ends:",
                 engine.timeline())  # fmt: skip


def step_of_the_hunt(lab, engine, says):
    """One step of the hunted loop; what goes wrong in it is said in the words of the test."""
    try:
        engine.step()
    except (Raised, Wrong) as error:
        raise Wrong(says, got=str(error), picture=engine.timeline()) from error


@further("Scheduler.schedule")
def test_15_the_hunt_a_newcomer_does_not_take_the_last_block(lab):
    engine = ToyEngine(lab, num_blocks=4, block_size=4, budget=32)
    engine.add("a", range(4), 6)
    engine.step()
    engine.add("b", range(10, 15), 1)
    says = (
        "There are three blocks. Request a has one, it is full, and its next token needs another. "
        "Request b waits, and would take the two that are free. In this step a goes on, b waits, "
        "and nobody is stopped."
    )
    step_of_the_hunt(lab, engine, says)
    lab.same(rows(engine), [("a", 4, 1)], says, engine.timeline())
    lab.same(engine.model.plans[-1].preempted_ids, (), says, engine.timeline())
    lab.same(started(engine), ["a"], says, engine.timeline())
    run(lab, engine, 9)
    lab.same(text_of(engine.outputs["b"]), text_of(greedy(range(10, 15), 1)),
             "When there is room again, b starts and says what it says alone.")  # fmt: skip


@further("Scheduler.schedule")
def test_16_the_hunt_a_step_has_one_budget_for_all(lab):
    budget = lab.random.randint(5, 8)
    engine = ToyEngine(lab, budget=budget)
    prompts = {name: range(number, number + lab.random.randint(4, 11))
               for number, name in enumerate("abcd")}  # fmt: skip
    for name, prompt in prompts.items():
        engine.add(name, prompt, 3)
    says = f"A step computes at most {budget} tokens, all requests together."
    for _ in range(60):
        if not engine.core.has_unfinished_requests:
            break
        step_of_the_hunt(lab, engine, says)
        got = engine.model.plans[-1].num_tokens if engine.model.plans else 0
        lab.true(got <= budget, says, engine.timeline("tokens by step"), got=got)
    for name, prompt in prompts.items():
        lab.same(text_of(engine.outputs[name]), text_of(greedy(prompt, 3)),
                 f"Request {name} says in company what it says alone.", engine.timeline(),
        )  # fmt: skip


@further("Scheduler.schedule")
def test_17_the_hunt_nobody_is_computed_who_was_just_stopped(lab):
    engine = ToyEngine(lab, num_blocks=4, block_size=4)
    says = (
        "There are three blocks: a has one and b two. In step 4 a needs another: b, which came "
        "later, is stopped for it. So b has no blocks and no row in this step."
    )
    engine.add("a", [1, 2], 6)
    engine.step()
    engine.add("b", [4, 5, 6, 7, 8], 5)
    for _ in range(3):
        step_of_the_hunt(lab, engine, says)
    lab.same(rows(engine), [("a", 4, 1)], says, engine.timeline())
    engine = ToyEngine(lab, num_blocks=3, block_size=4)
    says = (
        "Requests a and b have the only two blocks. In step 3 b needs another and there is none: "
        "b itself is stopped. So b has no row in this step."
    )
    engine.add("a", [1, 2], 3)
    engine.step()
    engine.add("b", [3, 4, 5, 6], 3)
    for _ in range(2):
        step_of_the_hunt(lab, engine, says)
    lab.same(rows(engine), [("a", 3, 1)], says, engine.timeline())
    run(lab, engine, 20)
    lab.same(text_of(engine.outputs["b"]), text_of(greedy([3, 4, 5, 6], 3)),
             "Request b was stopped and came back: its text is the same.")  # fmt: skip
