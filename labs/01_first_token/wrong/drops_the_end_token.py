# fails first: test_3_stops_at_the_end_token_and_keeps_it
# Stops in time, and leaves the end token out.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    output = []
    while len(output) < max_tokens:
        token = step([*prompt_token_ids, *output])
        if token in eos_token_ids:
            break
        output.append(token)
    return output
