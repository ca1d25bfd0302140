# fails first: test_1_hands_out_distinct_blocks_from_the_left_with_one_reader_each
# The blocks leave the queue, but nobody is said to read them.


class BlockPool:
    def allocate(self, n):
        if n > len(self.free_ids):
            raise ValueError("too few")
        return [self.free_ids.popleft() for _ in range(n)]
