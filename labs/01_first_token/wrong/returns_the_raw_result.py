# fails first: test_8_returns_what_the_scheduler_makes_of_the_result
# Hands the executor's result on; the scheduler's word is lost.


class EngineCore:
    def step(self):
        now = self.clock()
        plan = self.scheduler.schedule(now)
        if plan.is_empty():
            return []
        self.executor.execute_model(plan)
        result = self.executor.sample_tokens(plan.step)
        if self.trace:
            self.trace.step(now, plan, result)
        self.scheduler.update_from_output(plan, result)
        return result.sampled
