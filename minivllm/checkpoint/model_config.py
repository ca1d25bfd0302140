"""A checkpoint's shape: what a model needs to know before its weights are read.

Says nothing of how the model is run. What a checkpoint asks for and this engine lacks is refused
by name, by whoever reads it: `hf_config` for a folder, `gguf_config` for a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How the angles of RoPE are changed to reach further than a model was first trained for.

    `layers/rotary.py` has what each kind does. Fields that a kind does not use keep their
    defaults.
    """

    kind: str  # "linear", "dynamic", "yarn", "llama3" or "divisors"
    factor: float = 1.0
    original_max_position_embeddings: int = 0  # what the model was first trained for
    attention_factor: float = 1.0  # cosines and sines are multiplied with it
    beta_fast: float = 32.0  # yarn: pairs that turn more often than this in training stay
    beta_slow: float = 1.0  # yarn: those that turn less often are slowed by the whole factor
    truncate: bool = True  # yarn: the two borders are whole numbers of pairs
    low_freq_factor: float = 1.0  # llama3: as beta_slow
    high_freq_factor: float = 4.0  # llama3: as beta_fast
    divisors: tuple[float, ...] = ()  # divisors: of each pair's frequency

    def longest(self, max_position_embeddings: int) -> int:
        """Positions that a model can use whose file says max_position_embeddings, as vLLM counts
        them (config/model.py, _get_and_verify_max_len)."""
        if self.kind in ("linear", "dynamic"):
            return int(max_position_embeddings * self.factor)
        if self.kind == "yarn":
            return int(self.original_max_position_embeddings * self.factor)
        return max_position_embeddings


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder. Sizes count numbers, not bytes."""

    path: str  # the folder, or the .gguf file
    architecture: str  # "llama", "mistral", "qwen2", "qwen3", "phi3" or "smollm3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int  # query heads
    num_kv_heads: int
    head_dim: int  # need not be hidden_size / num_heads
    max_position_embeddings: int  # the most positions, RoPE scaling included
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool  # the head is the embedding
    dtype: str  # what it was stored in: a name of torch's, or "quantized"
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # each head of q and k is normed before it is turned
    rope_scaling: RopeScaling | None = None
    windows: tuple[int | None, ...] = ()  # by layer, how many keys a token sees; (): all do all
    layers_without_rope: tuple[int, ...] = ()
    fused_weights: bool = False  # one stored tensor holds q, k and v, another gate and up

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.path}: {self.num_heads} query heads cannot share {self.num_kv_heads} "
                f"KV heads evenly"
            )
        if self.head_dim % 2:
            raise ValueError(f"{self.path}: head_dim {self.head_dim} is odd, RoPE turns pairs")
        if not self.windows:
            object.__setattr__(self, "windows", (None,) * self.num_layers)
        assert len(self.windows) == self.num_layers


def read_model_config(path: str | os.PathLike[str]) -> ModelConfig:
    """The shape of the checkpoint at `path`, a Hugging Face folder or a .gguf file.

    Keys that are missing get transformers' defaults for the model type; the sizes must be there.
    Raises ValueError naming the file and the key: missing, of a wrong type, or asking for
    something that is not supported (another architecture, experts, quantized weights, ...).
    """
    from .gguf_config import read_gguf_config  # both build the classes above
    from .hf_config import read_hf_config

    path = os.fspath(path)
    return read_gguf_config(path) if os.path.isfile(path) else read_hf_config(path)
