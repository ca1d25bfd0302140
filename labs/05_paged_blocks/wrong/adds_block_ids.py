# fails first: test_8_maps_positions_through_the_table
# A block id is not a slot: it must be multiplied by the size.


def slot_mapping(table, start, num, block_size):
    return [table[p // block_size] + p % block_size for p in range(start, start + num)]
