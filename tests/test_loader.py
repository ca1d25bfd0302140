import torch
from torch import nn

STACKED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Linear(nn.Module):
    """Parameters of the given shapes, filled with NaN: what is not loaded is seen."""

    def __init__(self, rows: int, columns: int | None, dtype: torch.dtype, bias: bool = False):
        super().__init__()
        shape = (rows,) if columns is None else (rows, columns)
        self.weight = nn.Parameter(torch.full(shape, torch.nan, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.full((rows,), torch.nan, dtype=dtype))


def skeleton(config, dtype=torch.float32) -> nn.Module:
    """The parameters of a Llama with stacked projections, and nothing that computes."""
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size

    def linear(rows, columns, bias=False):
        return Linear(rows, columns, dtype, bias)

    def layer():
        attention = {
            "qkv_proj": linear(heads + 2 * kv_heads, hidden, config.attention_bias),
            "o_proj": linear(hidden, heads, config.attention_bias),
        }
        mlp = {
            "gate_up_proj": linear(2 * inner, hidden, config.mlp_bias),
            "down_proj": linear(hidden, inner, config.mlp_bias),
        }
        return nn.ModuleDict(
            {
                "input_layernorm": linear(hidden, None),
                "self_attn": nn.ModuleDict(attention),
                "post_attention_layernorm": linear(hidden, None),
                "mlp": nn.ModuleDict(mlp),
            }
        )

    model = nn.ModuleDict(
        {
            "model": nn.ModuleDict(
                {
                    "embed_tokens": linear(config.vocab_size, hidden),
                    "layers": nn.ModuleList(layer() for _ in range(config.num_layers)),
                    "norm": linear(hidden, None),
                }
            )
        }
    )
    if not config.tie_word_embeddings:
        model["lm_head"] = linear(config.vocab_size, hidden)
    model.stacked = STACKED
    return model
