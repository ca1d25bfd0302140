# fails first: test_2_can_hand_out_its_very_last_block
# At the border: as many as are free is not too many.


class BlockPool:
    def allocate(self, n):
        if n >= len(self.free_ids):
            raise ValueError("too few")
        block_ids = [self.free_ids.popleft() for _ in range(n)]
        for block_id in block_ids:
            self.ref_cnt[block_id] = 1
        return block_ids
