# fails first: test_10_a_plan_without_rows_may_still_have_work
# A plan without rows is thrown away, with what it had to tell the worker.


class EngineCore:
    def step(self):
        now = self.clock()
        plan = self.scheduler.schedule(now)
        if not plan.rows:
            return []
        self.executor.execute_model(plan)
        result = self.executor.sample_tokens(plan.step)
        if self.trace:
            self.trace.step(now, plan, result)
        return self.scheduler.update_from_output(plan, result)
