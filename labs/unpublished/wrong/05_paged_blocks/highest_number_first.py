# fails first: test_9_nothing_is_lost_in_a_thousand_random_steps
# Takes the highest number for the last of the table.


class BlockPool:
    def release(self, block_ids):
        for block_id in sorted(block_ids, reverse=True):
            assert self.ref_cnt[block_id] > 0
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0 and not self.cache.keep(block_id):
                self.give_back(block_id)
