# fails first: test_4_the_counter_moves_by_what_was_computed
# The count goes up by one a step, also for a chunk of four tokens.


class Scheduler:
    def update_from_output(self, plan, result):
        errors = dict(result.errors)
        outputs = []
        for index, row in enumerate(plan.rows):
            request = self.requests.get(row.request_id)
            if request is None or request.status is WAITING:
                continue
            new_token_ids = ()
            if row.request_id in errors:
                request.error = errors[row.request_id]
                request.finish("error")
            else:
                request.num_in_flight_tokens = 0
                request.num_computed_tokens += 1
                new_token_ids = self._accept(request, result.sampled[index])
                self._share(request)
            outputs.append(report(request, new_token_ids, result, index))
            if request.finish_reason is not None:
                self._leave(request)
        return outputs
