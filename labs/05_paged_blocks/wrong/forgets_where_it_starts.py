# fails first: test_8_maps_positions_through_the_table
# Always gives the slots of the first positions.


def slot_mapping(table, start, num, block_size):
    return [table[i // block_size] * block_size + i % block_size for i in range(num)]
