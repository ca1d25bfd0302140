# fails first: test_8_maps_positions_through_the_table
# Right inside a block, wrong where the request goes on in another.


def slot_mapping(table, start, num, block_size):
    first = table[start // block_size] * block_size + start % block_size
    return list(range(first, first + num))
