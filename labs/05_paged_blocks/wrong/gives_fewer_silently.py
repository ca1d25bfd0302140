# fails first: test_3_takes_nothing_when_short
# A slice never complains: who asks for four gets three.


class BlockPool:
    def allocate(self, n):
        block_ids = list(self.free_ids)[:n]
        for block_id in block_ids:
            self.free_ids.remove(block_id)
            self.ref_cnt[block_id] = 1
        return block_ids
