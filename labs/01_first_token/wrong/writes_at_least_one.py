# fails first: test_2_stops_after_max_tokens_exactly
# max_tokens 0 still asks for a token.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    output = []
    while True:
        output.append(step([*prompt_token_ids, *output]))
        if output[-1] in eos_token_ids or len(output) >= max_tokens:
            return output
