# fails first: test_3_takes_nothing_when_short
# Notices in the middle that there are too few; what it took is nobody's.


class BlockPool:
    def allocate(self, n):
        block_ids = []
        for _ in range(n):
            if not self.free_ids:
                raise ValueError("too few")
            block_ids.append(self.free_ids.popleft())
        for block_id in block_ids:
            self.ref_cnt[block_id] = 1
        return block_ids
