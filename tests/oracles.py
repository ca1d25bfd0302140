"""Independent judges: checkpoints read by other people's packages, never by ours."""

from __future__ import annotations

import json
import os

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def dequantize_to_hf_folder(gguf_path, out_dir, dtype: torch.dtype = torch.float32) -> str:
    """Write a Llama GGUF as a folder that transformers loads: weights in `dtype`, config,
    generation config, tokenizer.json with the chat template. Returns out_dir.

    Read by the `gguf` package. Byte-level BPE tokenizers only ("smollm" and "gpt-2").
    """
    reader = GGUFReader(gguf_path)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    assert facts["general.architecture"] == "llama", facts["general.architecture"]
    os.makedirs(out_dir, exist_ok=True)
    state = dequantized_state_dict(reader, facts, dtype)
    save_file(state, os.path.join(out_dir, "model.safetensors"), metadata={"format": "pt"})
    bos = facts["tokenizer.ggml.bos_token_id"]
    eos = facts["tokenizer.ggml.eos_token_id"]
    config = _hf_config(facts, tied="lm_head.weight" not in state)
    config |= {"dtype": str(dtype).removeprefix("torch.")}
    _write_json(out_dir, "config.json", config)
    _write_json(out_dir, "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos})
    _write_json(out_dir, "tokenizer_config.json", _tokenizer_config(facts))
    _tokenizer(facts).save(os.path.join(out_dir, "tokenizer.json"))
    return str(out_dir)


def dequantized_state_dict(reader: GGUFReader, facts: dict, dtype: torch.dtype) -> dict:
    """Every tensor of the file under its Hugging Face name, in `dtype`."""
    heads = {
        "attn_q": facts["llama.attention.head_count"],
        "attn_k": facts.get("llama.attention.head_count_kv", facts["llama.attention.head_count"]),
    }
    state = {}
    for tensor in reader.tensors:
        *layer, part, kind = tensor.name.split(".")
        shape = [int(size) for size in reversed(tensor.shape)]
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        values = values.reshape(shape)
        if part in heads:
            values = _halves_from_pairs(values, heads[part])
        name = f"model.layers.{layer[1]}.{_LAYER[part]}" if layer else _TOP[part]
        state[f"{name}.{kind}"] = values.to(dtype).contiguous()
    return state


def _halves_from_pairs(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """A Llama GGUF keeps the two rows that rotate together side by side (a0 b0 a1 b1 ...);
    transformers keeps them half a head apart (a0 a1 ... b0 b1 ...)."""
    heads = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return torch.cat((heads[:, :, 0], heads[:, :, 1]), dim=1).reshape(rows.shape)


def _hf_config(facts: dict, tied: bool) -> dict:
    num_heads = facts["llama.attention.head_count"]
    hidden = facts["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(facts["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": facts.get("llama.attention.head_count_kv", num_heads),
        "head_dim": facts.get("llama.rope.dimension_count", hidden // num_heads),
        "hidden_act": "silu",
        "rms_norm_eps": facts["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": facts.get("llama.rope.freq_base", 10000.0),
        "max_position_embeddings": facts["llama.context_length"],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
    }


def _tokenizer_config(facts: dict) -> dict:
    tokens = facts["tokenizer.ggml.tokens"]
    eos = facts["tokenizer.ggml.eos_token_id"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[eos],
        "unk_token": tokens[facts.get("tokenizer.ggml.unknown_token_id", eos)],
        "pad_token": tokens[facts.get("tokenizer.ggml.padding_token_id", eos)],
        "clean_up_tokenization_spaces": False,
        "model_max_length": facts["llama.context_length"],
        "chat_template": facts.get("tokenizer.chat_template"),
    }


def _tokenizer(facts: dict) -> Tokenizer:
    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    assert facts["tokenizer.ggml.model"] == "gpt2", facts["tokenizer.ggml.model"]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    steps = {
        "smollm": [pre_tokenizers.Digits(individual_digits=True), byte_level],
        "gpt-2": [byte_level],
    }[facts["tokenizer.ggml.pre"]]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return tokenizer


def _write_json(folder, name: str, content: dict) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
