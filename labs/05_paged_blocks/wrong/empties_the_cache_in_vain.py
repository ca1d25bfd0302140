# fails first: test_15_no_room_leaves_tables_queue_and_cache_as_they_were
# Lets the cache give way before it knows whether that is enough: prefixes are lost for nothing.


class KVCacheManager:
    def allocate_slots(self, request, num_new_tokens):
        table = self.tables[request.request_id]
        num_tokens = request.num_planned_tokens + num_new_tokens
        num_new_blocks = blocks_needed(len(table), num_tokens, self.block_size)
        short = min(num_new_blocks - self.pool.num_free, self.cache.num_evictable())
        if short > 0:
            for block_id in self.cache.evict(short):
                self.pool.give_back(block_id)
        if num_new_blocks > self.pool.num_free:
            return None
        block_ids = self.pool.allocate(num_new_blocks)
        table.extend(block_ids)
        return block_ids
