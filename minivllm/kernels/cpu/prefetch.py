"""A hint to the processor: these keys, or values, are wanted soon.

It changes no result, only how long one waits for memory, and so may stand outside `decode`, whose
compiled code would not notice a change here.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

CACHE_LINE = 64  # bytes
READ, MOST_LASTING, DATA = 0, 3, 1  # what LLVM's prefetch asks for


@njit
def prefetch(kv: np.ndarray, block: int, kind: int, head: int) -> None:
    """All of a block that belongs to a KV head. kind: 0 its keys, 1 its values."""
    for i in range(kv.shape[3]):
        for d in range(0, kv.shape[4], CACHE_LINE // kv.itemsize):
            prefetch_line(kv, (block, kind, head, i, d))


@intrinsic
def prefetch_line(typing, array, index):
    """The cache line in which array[index] lies."""

    def generate(context, builder, signature, args):
        kind, places = signature.args[0], cgutils.unpack_tuple(builder, args[1])
        here = context.make_array(kind)(context, builder, args[0])
        pointer = cgutils.get_item_pointer(context, builder, kind, here, places)
        pointer_type, word = ir.PointerType(ir.IntType(8)), ir.IntType(32)
        of_llvm = ir.FunctionType(ir.VoidType(), [pointer_type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, of_llvm, "llvm.prefetch.p0i8")
        asked = [word(READ), word(MOST_LASTING), word(DATA)]
        builder.call(function, [builder.bitcast(pointer, pointer_type), *asked])
        return context.get_dummy_value()

    return types.void(array, index), generate
