# fails first: test_9_an_empty_plan_asks_the_executor_for_nothing
# Sends the model to work on nothing.


class EngineCore:
    def step(self):
        now = self.clock()
        plan = self.scheduler.schedule(now)
        self.executor.execute_model(plan)
        result = self.executor.sample_tokens(plan.step)
        if self.trace:
            self.trace.step(now, plan, result)
        return self.scheduler.update_from_output(plan, result)
