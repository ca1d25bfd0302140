# fails first: test_1_one_request_one_step
# Nobody hears what the step brought.


class Scheduler:
    def update_from_output(self, plan, result):
        errors = dict(result.errors)
        outputs = []
        for index, row in enumerate(plan.rows):
            request = self.requests.get(row.request_id)
            if request is None or request.status is WAITING:
                continue
            if row.request_id in errors:
                request.error = errors[row.request_id]
                request.finish("error")
            else:
                request.num_in_flight_tokens -= len(row.token_ids)
                request.num_computed_tokens += len(row.token_ids)
                self._accept(request, result.sampled[index])
                self._share(request)
            if request.finish_reason is not None:
                self._leave(request)
        return outputs
