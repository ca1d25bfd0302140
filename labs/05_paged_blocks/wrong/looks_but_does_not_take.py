# fails first: test_1_hands_out_distinct_blocks_from_the_left_with_one_reader_each
# The ids are copied; the blocks stay in the queue and go out again.


class BlockPool:
    def allocate(self, n):
        if n > len(self.free_ids):
            raise ValueError("too few")
        block_ids = list(self.free_ids)[:n]
        for block_id in block_ids:
            self.ref_cnt[block_id] = 1
        return block_ids
