# fails first: test_12_tokens_on_their_way_have_their_place_already
# Counts from the tokens that are computed: those of a step that has not come back are overwritten.


class KVCacheManager:
    def allocate_slots(self, request, num_new_tokens):
        table = self.tables[request.request_id]
        num_tokens = request.num_computed_tokens + num_new_tokens
        num_new_blocks = blocks_needed(len(table), num_tokens, self.block_size)
        if num_new_blocks > self.num_free_blocks:
            return None
        block_ids = self._take_blocks(num_new_blocks)
        table.extend(block_ids)
        return block_ids
