# fails first: test_7_a_block_that_the_cache_keeps_does_not_go_back
# The cache is asked while somebody still reads the block, and then not again.


class BlockPool:
    def release(self, block_ids):
        for block_id in reversed(block_ids):
            assert self.ref_cnt[block_id] > 0
            kept = self.cache.keep(block_id)
            self.ref_cnt[block_id] -= 1
            if self.ref_cnt[block_id] == 0 and not kept:
                self.free_ids.append(block_id)
