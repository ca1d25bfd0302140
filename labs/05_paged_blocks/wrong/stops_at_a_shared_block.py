# fails first: test_9_nothing_is_lost_in_a_thousand_random_steps
# Ends the loop at the first block that others still read.


class BlockPool:
    def release(self, block_ids):
        for block_id in reversed(block_ids):
            assert self.ref_cnt[block_id] > 0
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] > 0:
                break
            if not self.cache.keep(block_id):
                self.give_back(block_id)
