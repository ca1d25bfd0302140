# fails first: test_11_a_request_owns_exactly_the_blocks_its_tokens_need
# Tokens that fill their blocks exactly get a block more.


def blocks_needed(num_owned, num_tokens, block_size):
    return max(0, num_tokens // block_size + 1 - num_owned)
