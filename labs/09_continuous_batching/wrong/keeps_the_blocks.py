# fails first: test_8_two_that_end_in_one_step_both_leave_and_give_their_blocks_back
# A finished request is forgotten, and its blocks with it.


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
                request.num_in_flight_tokens -= len(row.token_ids)
                request.num_computed_tokens += len(row.token_ids)
                new_token_ids = self._accept(request, result.sampled[index])
                self._share(request)
            outputs.append(report(request, new_token_ids, result, index))
            if request.finish_reason is not None:
                self.running.remove(request)
                del self.requests[request.request_id]
        return outputs
