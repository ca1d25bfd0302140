# fails first: test_1_writes_the_text_of_the_model
# What comes back starts with the prompt.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    tokens = list(prompt_token_ids)
    while len(tokens) - len(prompt_token_ids) < max_tokens:
        tokens.append(step(tokens))
        if tokens[-1] in eos_token_ids:
            break
    return tokens
