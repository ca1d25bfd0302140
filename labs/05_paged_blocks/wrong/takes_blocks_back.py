# fails first: test_11_a_request_owns_exactly_the_blocks_its_tokens_need
# Who owns more than is needed is told a negative number.


def blocks_needed(num_owned, num_tokens, block_size):
    return -(-num_tokens // block_size) - num_owned
