# fails first: test_7_a_block_that_the_cache_keeps_does_not_go_back
# Every block without readers is free: no prefix would ever be kept.


class BlockPool:
    def release(self, block_ids):
        for block_id in reversed(block_ids):
            assert self.ref_cnt[block_id] > 0
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0:
                self.give_back(block_id)
