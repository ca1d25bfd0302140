# Right, written another way: slices, one pass over whole blocks, early returns.
from itertools import islice


class BlockPool:
    def allocate(self, n):
        taken = tuple(islice(self.free_ids, n))
        if len(taken) < n:
            raise ValueError(f"{n} blocks wanted, {len(taken)} free")
        for _ in taken:
            self.ref_cnt[self.free_ids.popleft()] += 1
        return list(taken)

    def release(self, block_ids):
        index = len(block_ids)
        while index:
            index -= 1
            self._leave(block_ids[index])

    def _leave(self, block_id):
        readers = self.ref_cnt[block_id]
        if readers <= 0:
            raise AssertionError(f"block {block_id} is released without a reader")
        self.ref_cnt[block_id] = readers - 1
        if readers > 1 or self.cache.keep(block_id):
            return
        self.give_back(block_id)


def slot_mapping(table, start, num, block_size):
    slots, position, end = [], start, start + num
    while position < end:
        index, offset = divmod(position, block_size)
        size = min(block_size - offset, end - position)
        first = table[index] * block_size + offset
        slots.extend(range(first, first + size))
        position += size
    return slots


def blocks_needed(num_owned, num_tokens, block_size):
    full, rest = divmod(num_tokens, block_size)
    return max(num_owned, full + bool(rest)) - num_owned


class KVCacheManager:
    def allocate_slots(self, request, num_new_tokens):
        table = self.tables[request.request_id]
        new = blocks_needed(
            len(table), request.num_planned_tokens + num_new_tokens, self.block_size
        )
        if new == 0:
            return []
        if new <= self.num_free_blocks:
            ids = self._take_blocks(new)
            table.extend(ids)
            return ids
        return None
