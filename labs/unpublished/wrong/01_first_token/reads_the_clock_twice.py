# fails first: test_11_the_trace_hears_of_each_step
# Tells the trace another time than the one the step was planned for.


class EngineCore:
    def step(self):
        plan = self.scheduler.schedule(self.clock())
        if plan.is_empty():
            return []
        self.executor.execute_model(plan)
        result = self.executor.sample_tokens(plan.step)
        if self.trace:
            self.trace.step(self.clock(), plan, result)
        return self.scheduler.update_from_output(plan, result)
