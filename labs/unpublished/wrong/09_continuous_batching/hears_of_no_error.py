# fails first: test_8_two_that_end_in_one_step_both_leave_and_give_their_blocks_back
# Goes on with a request whose row failed.


class Scheduler:
    def update_from_output(self, plan, result):
        outputs = []
        for index, row in enumerate(plan.rows):
            request = self.requests.get(row.request_id)
            if request is None or request.status is WAITING:
                continue
            request.num_in_flight_tokens -= len(row.token_ids)
            request.num_computed_tokens += len(row.token_ids)
            new_token_ids = self._accept(request, result.sampled[index])
            self._share(request)
            outputs.append(report(request, new_token_ids, result, index))
            if request.finish_reason is not None:
                self._leave(request)
        return outputs
