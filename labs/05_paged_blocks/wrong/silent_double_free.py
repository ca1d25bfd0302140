# fails first: test_5_a_block_released_twice_is_loud
# A second release of the same block does nothing, and says nothing.


class BlockPool:
    def release(self, block_ids):
        for block_id in reversed(block_ids):
            if self.ref_cnt[block_id] == 0:
                continue
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0 and not self.cache.keep(block_id):
                self.give_back(block_id)
