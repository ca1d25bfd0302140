# fails first: test_6_reuses_the_longest_idle_first_and_a_tail_before_its_head
# Puts a block back at the left: what was just used is overwritten first.


class BlockPool:
    def release(self, block_ids):
        for block_id in reversed(block_ids):
            assert self.ref_cnt[block_id] > 0
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0 and not self.cache.keep(block_id):
                self.free_ids.appendleft(block_id)
                self.given_up.append(block_id)
