# fails first: test_14_blocks_that_the_cache_could_give_up_are_room
# Counts and takes free blocks only, so a full cache stops the engine.


class KVCacheManager:
    def allocate_slots(self, request, num_new_tokens):
        table = self.tables[request.request_id]
        num_tokens = request.num_planned_tokens + num_new_tokens
        num_new_blocks = blocks_needed(len(table), num_tokens, self.block_size)
        if num_new_blocks > self.pool.num_free:
            return None
        block_ids = self.pool.allocate(num_new_blocks)
        table.extend(block_ids)
        return block_ids
