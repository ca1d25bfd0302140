"""The sizes of well-known models, as far as they decide what a step costs. No weights, no names
of tensors; the numbers are those of each model's published config.json."""

from __future__ import annotations

from dataclasses import dataclass

from ..checkpoint.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder. A dense one is a mixture of one expert that takes every token."""

    name: str
    hidden_size: int
    intermediate_size: int  # of one expert
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    num_experts: int = 1
    experts_per_token: int = 1
    source: str = ""  # where its config.json is published
    date: str = ""

    @property
    def expert_params(self) -> int:
        """One expert of one layer: gate, up and down."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def shared_params(self) -> int:
        """What every token passes in all layers: q, k, v and o, the router, the norms."""
        heads = 2 * self.num_heads + 2 * self.num_kv_heads
        attention = self.hidden_size * heads * self.head_dim
        router = self.hidden_size * self.num_experts if self.num_experts > 1 else 0
        return self.num_layers * (attention + router + 2 * self.hidden_size) + self.hidden_size

    @property
    def head_params(self) -> int:
        """The matrix that turns a hidden state into scores of the whole vocabulary."""
        return self.hidden_size * self.vocab_size

    @property
    def embedding_params(self) -> int:
        """What the embedding needs beside the head: nothing where it is the head."""
        return 0 if self.tie_word_embeddings else self.head_params

    @property
    def num_params(self) -> int:
        experts = self.num_layers * self.num_experts * self.expert_params
        return self.shared_params + experts + self.head_params + self.embedding_params

    @property
    def active_params(self) -> int:
        """What one token is multiplied with, the head aside."""
        return self.shared_params + self.num_layers * self.experts_per_token * self.expert_params

    def expected_experts(self, num_tokens: int) -> float:
        """How many experts of a layer num_tokens tokens wake, if each token chose its
        experts_per_token evenly and by itself: E (1 - (1 - k/E)^tokens). Real routing is less
        even and wakes fewer."""
        missed = (1 - self.experts_per_token / self.num_experts) ** num_tokens
        return self.num_experts * (1 - missed)


_META = "huggingface.co/meta-llama"
MODELS = {
    "llama-3-8b": ModelShape(
        "Llama 3 8B", 4096, 14336, 32, 32, 8, 128, 128256, 8192,
        source=f"{_META}/Meta-Llama-3-8B", date="April 2024",
    ),
    "llama-3-70b": ModelShape(
        "Llama 3 70B", 8192, 28672, 80, 64, 8, 128, 128256, 8192,
        source=f"{_META}/Meta-Llama-3-70B", date="April 2024",
    ),
    "llama-3.1-8b": ModelShape(
        "Llama 3.1 8B", 4096, 14336, 32, 32, 8, 128, 128256, 131072,
        source=f"{_META}/Llama-3.1-8B", date="July 2024",
    ),
    "llama-3.1-70b": ModelShape(
        "Llama 3.1 70B", 8192, 28672, 80, 64, 8, 128, 128256, 131072,
        source=f"{_META}/Llama-3.1-70B", date="July 2024",
    ),
    "qwen3-8b": ModelShape(
        "Qwen3 8B", 4096, 12288, 36, 32, 8, 128, 151936, 40960,
        source="huggingface.co/Qwen/Qwen3-8B", date="April 2025",
    ),
    "qwen3-32b": ModelShape(
        "Qwen3 32B", 5120, 25600, 64, 64, 8, 128, 151936, 40960,
        source="huggingface.co/Qwen/Qwen3-32B", date="April 2025",
    ),
    "qwen3-30b-a3b": ModelShape(
        "Qwen3 30B-A3B", 2048, 768, 48, 32, 4, 128, 151936, 40960,
        num_experts=128, experts_per_token=8,
        source="huggingface.co/Qwen/Qwen3-30B-A3B", date="April 2025",
    ),
    "mixtral-8x7b": ModelShape(
        "Mixtral 8x7B", 4096, 14336, 32, 32, 8, 128, 32000, 32768,
        num_experts=8, experts_per_token=2,
        source="huggingface.co/mistralai/Mixtral-8x7B-v0.1", date="December 2023",
    ),
    "smollm2-135m": ModelShape(
        "SmolLM2 135M", 576, 1536, 30, 9, 3, 64, 49152, 8192, tie_word_embeddings=True,
        source="huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct", date="October 2024",
    ),
}  # fmt: skip


def find_model(name: str) -> ModelShape:
    """By its short name, in any case. Raises ValueError listing those that are known."""
    model = MODELS.get(name.lower())
    if model is None:
        raise ValueError(f"unknown model {name!r}: known are {', '.join(MODELS)}")
    return model


def shape_of(config: ModelConfig) -> ModelShape:
    """The shape of a dense checkpoint. Raises ValueError for one whose layers do not all see all
    positions, since attention would be counted too high."""
    if any(config.windows):
        raise ValueError(f"{config.path}: sliding windows are not modelled")
    return ModelShape(
        name=config.path,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
    )
