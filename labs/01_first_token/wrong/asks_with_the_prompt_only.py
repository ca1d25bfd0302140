# fails first: test_1_writes_the_text_of_the_model
# Asks the same question each time, so the first word comes for ever.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    output = []
    while len(output) < max_tokens:
        output.append(step(list(prompt_token_ids)))
        if output[-1] in eos_token_ids:
            break
    return output
