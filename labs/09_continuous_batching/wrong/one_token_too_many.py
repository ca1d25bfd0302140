# fails first: test_7_stops_at_max_tokens_and_at_eos_exactly
# Compares before it counts the new token; the engine writes one more than asked.


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
                new_token_ids = result.sampled[index]
                if request.num_output_tokens == request.sampling_params.max_tokens:
                    request.finish("length")
                request.token_ids += new_token_ids
                self._share(request)
            outputs.append(report(request, new_token_ids, result, index))
            if request.finish_reason is not None:
                self._leave(request)
        return outputs
