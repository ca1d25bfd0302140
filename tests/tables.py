"""Tables for the site, made from the code and from what the peers' documentation says.

Nothing here is committed: tests write them to build/tables/ and fail when they are not true.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

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
