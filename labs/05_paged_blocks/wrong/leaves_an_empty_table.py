# fails first: test_15_no_room_leaves_tables_queue_and_cache_as_they_were
# Makes a table for whoever asks, and lets it stand when there is no room.


class KVCacheManager:
    def allocate_slots(self, request, num_new_tokens):
        table = self.tables.setdefault(request.request_id, BlockTable())
        num_tokens = request.num_planned_tokens + num_new_tokens
        num_new_blocks = blocks_needed(len(table), num_tokens, self.block_size)
        if num_new_blocks > self.num_free_blocks:
            return None
        block_ids = self._take_blocks(num_new_blocks)
        table.extend(block_ids)
        return block_ids
