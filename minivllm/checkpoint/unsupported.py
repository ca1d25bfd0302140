"""Well-known architectures that this engine lacks, and what each of them would need."""

from __future__ import annotations

_EXPERTS = "there are no experts yet"
_LAYER_NORM = "norms are RMSNorm, this one needs LayerNorm"
_GEMMA = (
    "embeddings are not scaled, halves of a layer not normed on both sides, and GELU is missing"
)
_NORMED_AFTER = "each half of a layer is normed before it, this one norms after it"
_STATE = "there are no recurrent layers"
_MULTIPLIED = "embeddings, residuals and scores are not multiplied"
_PICTURES = "there is text only, no pictures"

# Hugging Face's model_type, and general.architecture of GGUF where that is another word.
MISSING = {
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen2moe", "qwen3_moe", "qwen3moe"), _EXPERTS),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek2", "gpt_oss", "gpt-oss"), _EXPERTS),
    **dict.fromkeys(("olmoe", "phimoe", "granitemoe", "dbrx", "llama4"), _EXPERTS),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gemma3"), _GEMMA),
    **dict.fromkeys(("olmo2", "olmo3", "exaone4"), _NORMED_AFTER),
    **dict.fromkeys(("granite", "minicpm"), _MULTIPLIED),
    **dict.fromkeys(("gpt2", "gpt_neox", "gptneox", "falcon", "bloom", "starcoder2"), _LAYER_NORM),
    **dict.fromkeys(("phi", "phi2", "stablelm", "cohere", "command-r", "cohere2"), _LAYER_NORM),
    **dict.fromkeys(("mamba", "mamba2", "jamba", "qwen3_next", "qwen3next", "lfm2"), _STATE),
    **dict.fromkeys(("qwen2_vl", "qwen2vl", "mistral3", "mllama", "llava"), _PICTURES),
    **dict.fromkeys(("glm4", "chatglm"), "RoPE turns whole heads, here it turns a part"),
    **dict.fromkeys(("bert", "t5", "whisper"), "there are decoders only"),
}


def what_is_missing(architecture: str, supported: tuple[str, ...]) -> str:
    """Why a checkpoint of this architecture cannot be loaded, and what can."""
    reason = MISSING.get(architecture, "this engine does not know it")
    return f"{reason} (supported: {', '.join(supported)})"
