"""Tables for the site, made from the code and from what the peers' documentation says.

Nothing here is committed: tests write them to build/tables/ and fail when they are not true.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import gguf

from minivllm.checkpoint.unsupported import MISSING
from minivllm.sampling_params import SamplingParams

TABLES = Path(__file__).parent.parent / "build" / "tables"

# Looked up on 2026-11-29: vllm/sampling_params.py of vllm-project/vllm at 00388f6573cc, and the
# completion options in tools/server/README.md of ggml-org/llama.cpp at 00dc8057ab28.
LOOKED_UP = "vLLM at 00388f6573cc and llama.cpp at 00dc8057ab28"
VLLM = [
    "n", "presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p",
    "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens",
    "min_tokens", "logprobs", "prompt_logprobs", "prompt_logprob_token_ids",
    "prompt_logprob_start", "logprob_token_ids", "flat_logprobs", "detokenize",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "output_kind", "stream_interval", "skip_clone", "structured_outputs", "logit_bias",
    "allowed_token_ids", "extra_args", "bad_words", "skip_reading_prefix_cache",
    "thinking_token_budget", "repetition_detection", "routed_experts_prompt_start",
    "trace_decode_token_ids",
]  # fmt: skip
LLAMA_CPP = [
    "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p",
    "n_predict", "n_indent", "n_keep", "n_cmpl", "n_cache_reuse", "stop", "typical_p",
    "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty",
    "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau",
    "mirostat_eta", "grammar", "json_schema", "seed", "ignore_eos", "logit_bias", "n_probs",
    "min_keep", "t_max_predict_ms", "samplers", "post_sampling_probs", "lora",
]  # fmt: skip
# Ours, where llama.cpp has it under another name.
IN_LLAMA_CPP = {
    "n": "n_cmpl",
    "repetition_penalty": "repeat_penalty",
    "max_tokens": "n_predict",
    "logprobs": "n_probs",
    "bad_words_token_ids": "logit_bias with false",
}
NOTES = {
    "temperature": "any finite number from 0; vLLM stops at 2",
    "top_k": "exactly k, of equal scores the lower ids; vLLM keeps all that equal the k-th",
    "repetition_penalty": "over prompt and answer, as in vLLM; llama.cpp looks at the last 64",
    "max_tokens": "0 scores the prompt; vLLM asks for at least 1",
    "logit_bias": "-100 to 100; vLLM cuts what is beyond, here it is refused",
    "bad_words_token_ids": "made by vLLM from bad_words; here they may be given as well",
    "extra_args": "for logits processors; an unknown name is refused",
}


def sampling_table() -> tuple[list[str], list[str]]:
    """Names, ours first, and the table's lines in Markdown."""
    ours = [f.name for f in fields(SamplingParams)]
    aliases = set(IN_LLAMA_CPP.values())
    others = [n for n in dict.fromkeys(VLLM + LLAMA_CPP) if n not in ours and n not in aliases]
    lines = ["| parameter | here | vLLM | llama.cpp | note |", "|---|---|---|---|---|"]
    for name in ours + others:
        here = "yes" if name in ours else "refused"
        its_name = IN_LLAMA_CPP.get(name, name if name in LLAMA_CPP else "-")
        vllm = "yes" if name in VLLM else "-"
        lines.append(f"| `{name}` | {here} | {vllm} | {its_name} | {NOTES.get(name, '')} |")
    return ours + others, [*lines, "", f"Looked up in {LOOKED_UP}."]


def write_sampling_table() -> list[str]:
    """Writes build/tables/sampling.md. Returns the names in it."""
    names, lines = sampling_table()
    TABLES.mkdir(parents=True, exist_ok=True)
    (TABLES / "sampling.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return names


@dataclass(frozen=True)
class Architecture:
    """A row of the table: what checkpoints call it, here and elsewhere."""

    name: str
    model_type: str | None  # in config.json
    gguf: str | None  # general.architecture, which is llama.cpp's name
    vllm: str  # the class that vLLM's registry has; "-": none
    supported: bool = False
    note: str = ""


# Looked up on 2026-11-29: vllm/model_executor/models/registry.py of vllm-project/vllm at
# 0002bff0b6cb, and src/llama-arch.cpp of ggml-org/llama.cpp at 00395eb285c7.
ARCHITECTURES_LOOKED_UP = "vLLM at 0002bff0b6cb and llama.cpp at 00395eb285c7"
ARCHITECTURES = [
    Architecture("Llama, SmolLM2", "llama", "llama", "LlamaForCausalLM", True,
                 "RoPE scaling: linear, dynamic, llama3, yarn; the same for all but Phi-3"),
    Architecture("Mistral", "mistral", "llama", "MistralForCausalLM", True,
                 "sliding window; most GGUF files do not name it, and then it is not there"),
    Architecture("Qwen2, Qwen2.5", "qwen2", "qwen2", "Qwen2ForCausalLM", True,
                 "sliding window in some layers, from folders"),
    Architecture("Qwen3", "qwen3", "qwen3", "Qwen3ForCausalLM", True,
                 "sliding window in some layers, from folders"),
    Architecture("Phi-3, Phi-4", "phi3", "phi3", "Phi3ForCausalLM", True,
                 "sliding window; longrope and RoPE on part of a head are refused"),
    Architecture("SmolLM3", "smollm3", "smollm3", "SmolLM3ForCausalLM", True,
                 "layers without RoPE"),
    Architecture("Mixtral", "mixtral", "llama", "MixtralForCausalLM"),
    Architecture("Qwen2 MoE", "qwen2_moe", "qwen2moe", "Qwen2MoeForCausalLM"),
    Architecture("Qwen3 MoE", "qwen3_moe", "qwen3moe", "Qwen3MoeForCausalLM"),
    Architecture("DeepSeek V2", "deepseek_v2", "deepseek2", "DeepseekV2ForCausalLM"),
    Architecture("DeepSeek V3", "deepseek_v3", "deepseek2", "DeepseekV3ForCausalLM"),
    Architecture("GPT-OSS", "gpt_oss", "gpt-oss", "GptOssForCausalLM"),
    Architecture("OLMoE", "olmoe", "olmoe", "OlmoeForCausalLM"),
    Architecture("Phi-3.5 MoE", "phimoe", "phimoe", "PhiMoEForCausalLM"),
    Architecture("Granite MoE", "granitemoe", "granitemoe", "GraniteMoeForCausalLM"),
    Architecture("DBRX", "dbrx", "dbrx", "DbrxForCausalLM"),
    Architecture("Llama 4", "llama4", "llama4", "Llama4ForCausalLM"),
    Architecture("Gemma", "gemma", "gemma", "GemmaForCausalLM"),
    Architecture("Gemma 2", "gemma2", "gemma2", "Gemma2ForCausalLM"),
    Architecture("Gemma 3", "gemma3_text", "gemma3", "Gemma3ForCausalLM"),
    Architecture("OLMo 2", "olmo2", "olmo2", "Olmo2ForCausalLM"),
    Architecture("OLMo 3", "olmo3", "olmo2", "Olmo3ForCausalLM"),
    Architecture("EXAONE 4", "exaone4", "exaone4", "Exaone4ForCausalLM"),
    Architecture("Granite", "granite", "granite", "GraniteForCausalLM"),
    Architecture("MiniCPM", "minicpm", "minicpm", "MiniCPMForCausalLM"),
    Architecture("GPT-2", "gpt2", "gpt2", "GPT2LMHeadModel"),
    Architecture("GPT-NeoX", "gpt_neox", "gptneox", "GPTNeoXForCausalLM"),
    Architecture("Falcon", "falcon", "falcon", "FalconForCausalLM"),
    Architecture("BLOOM", "bloom", "bloom", "BloomForCausalLM"),
    Architecture("StarCoder2", "starcoder2", "starcoder2", "Starcoder2ForCausalLM"),
    Architecture("Phi-2", "phi", "phi2", "PhiForCausalLM"),
    Architecture("StableLM", "stablelm", "stablelm", "StableLmForCausalLM"),
    Architecture("Command R", "cohere", "command-r", "CohereForCausalLM"),
    Architecture("Command R7B", "cohere2", "cohere2", "Cohere2ForCausalLM"),
    Architecture("Mamba", "mamba", "mamba", "MambaForCausalLM"),
    Architecture("Mamba 2", "mamba2", "mamba2", "Mamba2ForCausalLM"),
    Architecture("Jamba", "jamba", "jamba", "JambaForCausalLM"),
    Architecture("Qwen3-Next", "qwen3_next", "qwen3next", "Qwen3NextForCausalLM"),
    Architecture("LFM2", "lfm2", "lfm2", "Lfm2ForCausalLM"),
    Architecture("GLM-4", "glm4", "glm4", "Glm4ForCausalLM"),
    Architecture("ChatGLM", "chatglm", "chatglm", "ChatGLMModel"),
    Architecture("Qwen2-VL", "qwen2_vl", "qwen2vl", "Qwen2VLForConditionalGeneration"),
    Architecture("Mistral 3", "mistral3", "mistral3", "Mistral3ForConditionalGeneration"),
    Architecture("Llama 3.2 Vision", "mllama", None, "-"),
    Architecture("LLaVA", "llava", None, "LlavaForConditionalGeneration"),
    Architecture("BERT", "bert", "bert", "BertModel"),
    Architecture("T5", "t5", "t5", "-"),
    Architecture("Whisper", "whisper", None, "WhisperForConditionalGeneration"),
]  # fmt: skip


def write_architecture_table() -> list[Architecture]:
    """Writes build/tables/architectures.md. Returns the rows in it."""
    lines = [
        "| architecture | here | config.json | vLLM | llama.cpp | note |",
        "|---|---|---|---|---|---|",
    ]
    for row in ARCHITECTURES:
        here = "yes" if row.supported else "refused"
        note = row.note or MISSING[row.model_type]
        peers = f"{row.vllm} | {row.gguf or '-'}"
        lines.append(f"| {row.name} | {here} | `{row.model_type}` | {peers} | {note} |")
    lines += ["", f"Looked up in {ARCHITECTURES_LOOKED_UP}."]
    TABLES.mkdir(parents=True, exist_ok=True)
    (TABLES / "architectures.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return ARCHITECTURES


def smallest_checkpoints(row: Architecture, directory: Path) -> list[str]:
    """A config.json of this model type and a GGUF header of this architecture, without weights."""
    found = []
    if row.model_type:
        folder = directory / f"{row.name} folder"
        folder.mkdir()
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
        config = {**dict.fromkeys(sizes, 64), "num_attention_heads": 4, "num_key_value_heads": 2}
        (folder / "config.json").write_text(json.dumps({"model_type": row.model_type, **config}))
        found.append(str(folder))
    if row.gguf:
        path = directory / f"{row.name}.gguf"
        writer = gguf.GGUFWriter(path, row.gguf)
        writer.add_vocab_size(64)
        writer.add_block_count(2)
        writer.add_context_length(64)
        writer.add_embedding_length(64)
        writer.add_feed_forward_length(64)
        writer.add_head_count(4)
        writer.add_layer_norm_rms_eps(1e-5)
        if row.model_type == "mixtral":
            writer.add_expert_count(8)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        found.append(str(path))
    return found
