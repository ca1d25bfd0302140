# fails first: test_5_asks_once_for_each_token
# Asks for the next token before it knows whether there is to be one.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    output = []
    token = step([*prompt_token_ids])
    while len(output) < max_tokens:
        output.append(token)
        if token in eos_token_ids:
            break
        token = step([*prompt_token_ids, *output])
    return output
