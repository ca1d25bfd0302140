# fails first: test_7_a_step_is_plan_execute_sample_update
# Numbers the steps on its own instead of taking the plan's number.


class EngineCore:
    def step(self):
        self.num_steps = getattr(self, "num_steps", 0) + 1
        now = self.clock()
        plan = self.scheduler.schedule(now)
        if plan.is_empty():
            return []
        self.executor.execute_model(plan)
        result = self.executor.sample_tokens(self.num_steps)
        if self.trace:
            self.trace.step(now, plan, result)
        return self.scheduler.update_from_output(plan, result)
