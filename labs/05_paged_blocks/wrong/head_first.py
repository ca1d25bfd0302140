# fails first: test_6_reuses_the_longest_idle_first_and_a_tail_before_its_head
# Releases a prompt's first block first: the head is reused before its tail.


class BlockPool:
    def release(self, block_ids):
        for block_id in block_ids:
            assert self.ref_cnt[block_id] > 0
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0 and not self.cache.keep(block_id):
                self.give_back(block_id)
