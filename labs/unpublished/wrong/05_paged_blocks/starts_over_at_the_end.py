# fails first: test_8_maps_positions_through_the_table
# Beyond the last block it goes on in the first one.


def slot_mapping(table, start, num, block_size):
    return [
        table[position // block_size % len(table)] * block_size + position % block_size
        for position in range(start, start + num)
    ]
