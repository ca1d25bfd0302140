# fails first: test_4_gives_the_model_everything_every_time
# A question before the loop, with half of the prompt, to get the model going.


def generate_greedy(step, prompt_token_ids, max_tokens, eos_token_ids=()):
    if len(prompt_token_ids) == 0:
        raise ValueError("empty")
    step(list(prompt_token_ids[: len(prompt_token_ids) // 2]))
    output = []
    while len(output) < max_tokens:
        output.append(step([*prompt_token_ids, *output]))
        if output[-1] in eos_token_ids:
            break
    return output
