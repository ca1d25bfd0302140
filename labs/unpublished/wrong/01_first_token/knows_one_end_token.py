# fails first: test_3_stops_at_the_end_token_and_keeps_it
# Takes the first of the end tokens for the only one.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("the prompt is empty")
    end = next(iter(eos_token_ids), None)
    output = []
    while len(output) < max_tokens and (not output or output[-1] != end):
        output.append(step([*prompt_token_ids, *output]))
    return output
