# fails first: test_11_a_request_owns_exactly_the_blocks_its_tokens_need
# Rounds each growth up by itself: the free half of the last block is never used.


class KVCacheManager:
    def allocate_slots(self, request, num_new_tokens):
        table = self.tables[request.request_id]
        num_new_blocks = -(-num_new_tokens // self.block_size)
        if num_new_blocks > self.num_free_blocks:
            return None
        block_ids = self._take_blocks(num_new_blocks)
        table.extend(block_ids)
        return block_ids
