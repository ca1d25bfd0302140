# fails first: test_12_the_engine_talks
# Plans once to see whether there is work, and once more if there is more than one request.


class EngineCore:
    def step(self):
        now = self.clock()
        plan = self.scheduler.schedule(now)
        if plan.is_empty():
            return []
        if len(plan.rows) > 1:
            plan = self.scheduler.schedule(now)
        self.executor.execute_model(plan)
        result = self.executor.sample_tokens(plan.step)
        if self.trace:
            self.trace.step(now, plan, result)
        return self.scheduler.update_from_output(plan, result)
