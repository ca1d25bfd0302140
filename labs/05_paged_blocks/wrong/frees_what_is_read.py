# fails first: test_4_keeps_a_block_that_still_has_a_reader
# Counts right, but puts every block into the queue.


class BlockPool:
    def release(self, block_ids):
        for block_id in reversed(block_ids):
            assert self.ref_cnt[block_id] > 0
            self.ref_cnt[block_id] -= 1
            if not self.cache.keep(block_id):
                self.free_ids.append(block_id)
                self.given_up.append(block_id)
