# fails first: test_11_the_trace_hears_of_each_step
# The trace never hears of the step.


class EngineCore:
    def step(self):
        plan = self.scheduler.schedule(self.clock())
        if plan.is_empty():
            return []
        self.executor.execute_model(plan)
        result = self.executor.sample_tokens(plan.step)
        return self.scheduler.update_from_output(plan, result)
