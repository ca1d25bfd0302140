# Right, written another way: a generator for the loop, one growing list, no early return.
from itertools import islice


def tokens_after(step, token_ids):
    token_ids = list(token_ids)
    while True:
        token_ids.append(step(token_ids))
        yield token_ids[-1]


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if not list(prompt_token_ids):
        raise ValueError("there is no prompt")
    output = []
    for token in islice(tokens_after(step, prompt_token_ids), max_tokens):
        output += [token]
        if token in set(eos_token_ids):
            return output
    return output


class EngineCore:
    def step(self):
        gained, now = [], self.clock()
        plan = self.scheduler.schedule(now)
        if not plan.is_empty():
            self.executor.execute_model(plan)
            result = self.executor.sample_tokens(plan.step, None)
            if self.trace is not None:
                self.trace.step(now, plan, result)
            gained = self.scheduler.update_from_output(plan, result)
        return gained
