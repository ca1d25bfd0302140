# fails first: test_1_hands_out_distinct_blocks_from_the_left_with_one_reader_each
# The block that was freed last is handed out first.


class BlockPool:
    def allocate(self, n):
        if n > len(self.free_ids):
            raise ValueError("too few")
        block_ids = [self.free_ids.pop() for _ in range(n)]
        for block_id in block_ids:
            self.ref_cnt[block_id] = 1
        return block_ids
