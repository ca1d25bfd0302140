# fails first: test_6_refuses_an_empty_prompt_and_leaves_the_rest_alone
# Takes every prompt for a list: a tuple and a list cannot be added.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if not prompt_token_ids:
        raise ValueError("empty")
    output = []
    while len(output) < max_tokens:
        output.append(step(prompt_token_ids + output))
        if output[-1] in eos_token_ids:
            break
    return output
