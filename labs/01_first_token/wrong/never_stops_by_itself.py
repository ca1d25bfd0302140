# fails first: test_3_stops_at_the_end_token_and_keeps_it
# Nobody looks for the end token.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    output = []
    for _ in range(max_tokens):
        output.append(step([*prompt_token_ids, *output]))
    return output
