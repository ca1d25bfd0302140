# fails first: test_6_reuses_the_longest_idle_first_and_a_tail_before_its_head
# Sorts the blocks that it hands out: the order of the queue is lost.


class BlockPool:
    def allocate(self, n):
        if n > len(self.free_ids):
            raise ValueError("too few")
        block_ids = sorted(self.free_ids.popleft() for _ in range(n))
        for block_id in block_ids:
            self.ref_cnt[block_id] = 1
        return block_ids
