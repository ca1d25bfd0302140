# fails first: test_6_refuses_an_empty_prompt_and_leaves_the_rest_alone
# Appends to the caller's prompt: wrong for a list, impossible for a tuple.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    num_prompt = len(prompt_token_ids)
    while len(prompt_token_ids) < num_prompt + max_tokens:
        prompt_token_ids.append(step(list(prompt_token_ids)))
        if prompt_token_ids[-1] in eos_token_ids:
            break
    return prompt_token_ids[num_prompt:]
