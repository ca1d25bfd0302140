# fails first: test_5_the_step_that_completes_a_prompt_gives_its_first_token
# Rows of several tokens that start inside a prompt count as prompt work only.


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
                new_token_ids = self._accept(
                    request, () if row.start and len(row.token_ids) > 1 else result.sampled[index]
                )
                self._share(request)
            outputs.append(report(request, new_token_ids, result, index))
            if request.finish_reason is not None:
                self._leave(request)
        return outputs
