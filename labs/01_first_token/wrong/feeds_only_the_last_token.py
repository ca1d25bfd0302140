# fails first: test_1_writes_the_text_of_the_model
# Asks a model without memory with the last token alone.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    output, token = [], step(list(prompt_token_ids))
    while len(output) < max_tokens:
        output.append(token)
        if token in eos_token_ids:
            break
        token = step([token])
    return output
