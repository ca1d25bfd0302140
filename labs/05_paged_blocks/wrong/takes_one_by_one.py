# fails first: test_13_an_allocation_that_does_not_fit_changes_nothing
# Gives up in the middle; the blocks taken by then stay in the table.


class KVCacheManager:
    def allocate_slots(self, request, num_new_tokens):
        table = self.tables[request.request_id]
        num_tokens = request.num_planned_tokens + num_new_tokens
        new = []
        for _ in range(blocks_needed(len(table), num_tokens, self.block_size)):
            if self.num_free_blocks == 0:
                return None
            (block_id,) = self._take_blocks(1)
            table.extend([block_id])
            new.append(block_id)
        return new
