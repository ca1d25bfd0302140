# fails first: test_1_writes_the_text_of_the_model
# Appends the prompt again in each round.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    tokens, output = [], []
    while len(output) < max_tokens:
        tokens += prompt_token_ids
        output.append(step(tokens))
        tokens.append(output[-1])
        if output[-1] in eos_token_ids:
            break
    return output
