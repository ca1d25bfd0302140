# fails first: test_11_a_request_owns_exactly_the_blocks_its_tokens_need
# A block whenever the length is 1 past a border: right only for one token at a time.


class KVCacheManager:
    def allocate_slots(self, request, num_new_tokens):
        table = self.tables[request.request_id]
        num_tokens = request.num_planned_tokens + num_new_tokens
        if num_tokens % self.block_size != 1:
            return []
        if self.num_free_blocks == 0:
            return None
        block_ids = self._take_blocks(1)
        table.extend(block_ids)
        return block_ids
