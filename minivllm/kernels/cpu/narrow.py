"""The decoder by the compiled loops of `decode`, which were made for rows with one new token.

With up to MAX_ROWS tokens the products are compiled as well; with more, they are torch's with
packed weights. A weight is kept in both layouts, as it was loaded and packed: the same numbers, in
whatever company. Chunks of LONG tokens and more attend by torch, which shares what it reads of the
keys among them; shorter ones, token by token.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import AttentionMetadata, reference
from . import packed
from .layer import Layer, Rows

logger = logging.getLogger(__name__)

MAX_ROWS = 4  # beyond, torch's products win
ALIGNMENT = 64  # bytes: a cache line
LONG = 16  # from here on, torch's attention wins
NOTHING = np.empty(0, dtype=np.float32)
NO_WINDOW = np.iinfo(np.int64).max


def why_not() -> str | None:
    """Why there are no compiled loops here; None if there are."""
    try:
        importlib.import_module("numba")
        importlib.import_module(".decode", __package__)
    except (ImportError, RuntimeError) as error:  # RuntimeError: nowhere to keep what is compiled
        return f"numba does not work ({error})"
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError:  # its other pools take as long to start a loop as a loop takes
        return "numba finds no OpenMP"
    return None


def compiled() -> ModuleType:
    """`decode`, whose import imports numba, set to use as many threads as torch does."""
    import numba

    from . import decode

    num_threads = torch.get_num_threads()
    numba.set_num_threads(min(num_threads, numba.config.NUMBA_NUM_THREADS))
    # The first call starts numba's pool, which is torch's as well, and sets the size of both.
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)
    return decode


def place(tensors: Iterable[Tensor]) -> None:
    """One array for all, which is so large that numpy asks Linux for pages of 2 MiB. At one token
    a step, a fourth of the time went into finding pages of 4 KiB."""
    tensors = list(tensors)
    sizes = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors]
    ends = list(accumulate(sizes, initial=0))
    memory = torch.from_numpy(np.empty(ends[-1] + ALIGNMENT, dtype=np.uint8))
    memory = memory[-memory.data_ptr() % ALIGNMENT :]
    for tensor, start in zip(tensors, ends, strict=False):
        tensor.data = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight, in the layouts of both kinds of step."""

    plain: Tensor  # [out, in]
    packed: Tensor | None  # None: there was no room for it twice

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if len(x) > MAX_ROWS:
            if self.packed is None:
                return F.linear(x, self.plain, bias)
            return packed.linear(x, self.packed, bias)
        out = compiled().products(floats(x), array(self.plain), floats(bias))
        return torch.from_numpy(out).to(x.dtype)


def pack_linear(weight: Tensor, room: bool = True) -> Tensor | Weight:  # [out, in]
    """The weight as `linear` wants it. room: whether memory holds it twice."""
    if weight.device.type != "cpu" or weight.dtype not in packed.PACKABLE:
        return weight
    weight = weight.detach()
    return Weight(weight, packed.pack_linear(weight) if room else None)


def linear(
    x: Tensor,  # [tokens, in]
    weight: Tensor | Weight,  # as pack_linear returned it
    bias: Tensor | None = None,  # [out]
) -> Tensor:  # [tokens, out]
    if isinstance(weight, Weight):
        return weight.linear(x, bias)
    return F.linear(x, weight, bias)


class CompiledDecoder:
    """What `compile_decoder` returns. Call it in the model's place."""

    def __init__(self, model: nn.Module, kv_cache: Sequence[Tensor]) -> None:
        self.model = model
        self.norm, self.eps = floats(model.norm.weight), np.float32(model.norm.eps)
        self.layers = [
            compiled_layer(layer, window)
            for layer, window in zip(model.layers, model.windows, strict=True)
        ]
        self.kv_cache = [array(layer_cache) for layer_cache in kv_cache]
        self.dtype = kv_cache[0].dtype

    def __call__(self, token_ids: Tensor, positions: Tensor, metadata: AttentionMetadata) -> Tensor:
        """As the model: [tokens, hidden], and keys and values are in the cache."""
        decode = compiled()
        rows, chunks = self.one_row_a_token(positions, metadata)
        embedded = self.model.embed_tokens(token_ids)
        hidden = np.zeros(embedded.shape, dtype=np.float32)
        if len(hidden) <= MAX_ROWS:
            update = floats(embedded)
            for layer, layer_cache in zip(self.layers, self.kv_cache, strict=True):
                update = decode.decoder_layer(hidden, update, layer, rows, layer_cache)
        else:
            update = array(embedded)
            where = zip(self.model.layers, self.layers, self.kv_cache, strict=True)
            for module, layer, layer_cache in where:
                update = wide_layer(
                    decode, module, layer, layer_cache, hidden, update, rows, chunks
                )
        normed = decode.add_and_norm_wide(hidden, update, self.norm, self.eps)
        return tensor(normed, embedded.dtype)

    def one_row_a_token(
        self, positions: Tensor, metadata: AttentionMetadata
    ) -> tuple[Rows, Chunks | None]:
        """(where each token stands, the chunks that torch attends for; None: there are none)."""
        num_new = [end - start for start, end in pairwise(metadata.query_start_loc)]
        lens, table, chunks = np.array(metadata.seq_lens), metadata.block_table, None
        if max(num_new) > 1:
            # Token i of a chunk ends a row of its own.
            of_each = np.repeat(np.arange(len(num_new)), num_new)
            behind = np.array(metadata.query_start_loc[1:])[of_each] - 1 - np.arange(len(of_each))
            lens, table = lens[of_each] - behind, table[torch.from_numpy(of_each)]
            long = [r for r, num in enumerate(num_new) if num >= LONG]
            if long:
                chunks = Chunks(long, metadata, self.layers, tensor(self.kv_cache[0], self.dtype))
                lens[chunks.tokens] = 0
        cos, sin = self.model.rotary.look_up(positions)
        rows = Rows(
            lens=lens,
            table=table.numpy(),
            slots=metadata.slot_mapping.numpy(),
            cos=floats(cos.squeeze(1)),
            sin=floats(sin.squeeze(1)),
        )
        return rows, chunks


class Chunks:
    """The rows `which` of a step, as torch attends for them."""

    def __init__(
        self,
        which: list[int],
        metadata: AttentionMetadata,
        layers: Sequence[Layer],
        kv: Tensor,  # any layer's
    ) -> None:
        starts = metadata.query_start_loc
        self.tokens = np.concatenate([np.arange(starts[r], starts[r + 1]) for r in which])
        ends = np.cumsum([starts[r + 1] - starts[r] for r in which])
        own = AttentionMetadata(
            [0, *ends.tolist()],
            [metadata.seq_lens[r] for r in which],
            metadata.block_table[which],
            metadata.slot_mapping[self.tokens],
        )
        own = reference.prepare(own, kv)
        self.batches = {}
        for window in {layer.window for layer in layers}:
            view = own if window == NO_WINDOW else reference.within_window(own, window)
            self.batches[window] = [
                (batch, torch.zeros(batch.hidden[0].shape, dtype=kv.dtype).masked_fill_(
                    batch.hidden[0], -torch.inf
                ))
                for batch in view.prepared.batches
            ]  # fmt: skip

    def attention(self, heads: np.ndarray, layer: Layer, kv: Tensor) -> np.ndarray:
        """As `decode.attention`, of these rows' tokens alone."""
        num_heads = heads.shape[1] - 2 * kv.shape[2]
        q = torch.from_numpy(heads[self.tokens, :num_heads]).to(kv.dtype)
        out = torch.empty_like(q)
        for batch, mask in self.batches[layer.window]:
            k, v = reference.gather(kv, batch)
            asked = q[batch.tokens].transpose(0, 1)[None]  # [1, heads, new tokens, head_dim]
            seen = F.scaled_dot_product_attention(asked, k, v, attn_mask=mask, enable_gqa=True)
            out[batch.tokens] = seen[0].transpose(0, 1)
        return array(out.flatten(1))


def wide_layer(
    decode: ModuleType,
    module: nn.Module,
    layer: Layer,  # the same
    kv: np.ndarray,
    hidden: np.ndarray,
    update: np.ndarray,
    rows: Rows,
    chunks: Chunks | None,
) -> np.ndarray:
    """`decode.decoder_layer` with torch's products, which win when a weight serves many rows."""
    dtype = module.mlp.down_proj.packed.plain.dtype

    def product(part: nn.Module, x: np.ndarray) -> np.ndarray:
        return array(part.packed.linear(tensor(x, dtype), part.bias))

    attention, mlp = module.self_attn, module.mlp
    normed = decode.add_and_norm_wide(hidden, update, layer.input_norm, layer.eps)
    heads = decode.turn_and_write_wide(product(attention.qkv_proj, normed), layer, rows, kv)
    seen = decode.attention(heads, layer, rows, kv, normed)
    if chunks is not None:
        seen[chunks.tokens] = chunks.attention(heads, layer, tensor(kv, dtype))
    update = product(attention.o_proj, seen)
    normed = decode.add_and_norm_wide(hidden, update, layer.post_norm, layer.eps)
    return product(mlp.down_proj, decode.gate_wide(product(mlp.gate_up_proj, normed)))


def compile_decoder(model: nn.Module, kv_cache: Sequence[Tensor]) -> CompiledDecoder | None:
    """The decoder of a packed model, compiled and tried; None in a dtype that has no compiled
    loops. kv_cache: by layer, as the model will get it."""
    if not isinstance(model.layers[0].mlp.down_proj.packed, Weight):
        return None
    text = "compiling loops for this processor, which is done once and takes about 20 s"
    waiting = threading.Timer(2.0, logger.warning, (text,))
    waiting.start()
    try:
        decoder = CompiledDecoder(model, kv_cache)
        for num in (1, MAX_ROWS + 1):
            nobody = torch.zeros(num, dtype=torch.int64)
            starts, lens = list(range(num + 1)), [0] * num
            decoder(nobody, nobody, AttentionMetadata(starts, lens, nobody[:, None], nobody - 1))
    finally:
        waiting.cancel()
    return decoder


def compiled_layer(layer: nn.Module, window: int | None) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp

    def norm(module: nn.Module | None) -> np.ndarray:
        return NOTHING if module is None else floats(module.weight)

    return Layer(
        input_norm=norm(layer.input_layernorm),
        qkv=array(attention.qkv_proj.packed.plain),
        qkv_bias=floats(attention.qkv_proj.bias),
        q_norm=norm(attention.q_norm),
        k_norm=norm(attention.k_norm),
        o=array(attention.o_proj.packed.plain),
        o_bias=floats(attention.o_proj.bias),
        post_norm=norm(layer.post_attention_layernorm),
        gate_up=array(mlp.gate_up_proj.packed.plain),
        gate_up_bias=floats(mlp.gate_up_proj.bias),
        down=array(mlp.down_proj.packed.plain),
        down_bias=floats(mlp.down_proj.bias),
        eps=np.float32(layer.input_layernorm.eps),
        turns=attention.uses_rope,
        window=window or NO_WINDOW,
    )


def array(tensor: Tensor) -> np.ndarray:
    """The tensor's own memory as numpy sees it: bfloat16, which numpy has not, as uint16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
    """The way back, to numbers of `dtype`."""
    here = torch.from_numpy(array)
    return here.view(dtype) if here.dtype == torch.uint16 else here.to(dtype)


def floats(tensor: Tensor | None) -> np.ndarray:
    """The numbers in float32; nothing for None."""
    return NOTHING if tensor is None else array(tensor.detach().float().contiguous())
