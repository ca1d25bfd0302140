# fails first: test_8_maps_positions_through_the_table
# Past the end of the table it gives fewer slots instead of an error.


def slot_mapping(table, start, num, block_size):
    slots = [b * block_size + offset for b in table for offset in range(block_size)]
    return slots[start : start + num]
