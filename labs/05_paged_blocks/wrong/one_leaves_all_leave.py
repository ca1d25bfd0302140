# fails first: test_4_keeps_a_block_that_still_has_a_reader
# Sets the count to 0 although another request still reads the block.


class BlockPool:
    def release(self, block_ids):
        for block_id in reversed(block_ids):
            assert self.ref_cnt[block_id] > 0
            self.ref_cnt[block_id] = 0
            if not self.cache.keep(block_id):
                self.give_back(block_id)
