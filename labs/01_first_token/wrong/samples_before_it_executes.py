# fails first: test_7_a_step_is_plan_execute_sample_update
# Asks for the result of a step that has not begun.


class EngineCore:
    def step(self):
        now = self.clock()
        plan = self.scheduler.schedule(now)
        if plan.is_empty():
            return []
        result = self.executor.sample_tokens(plan.step)
        self.executor.execute_model(plan)
        if self.trace:
            self.trace.step(now, plan, result)
        return self.scheduler.update_from_output(plan, result)
