"""The whole course as it is planned: every lesson in its order, and ways through them. What is
written says the rest of itself, in its notebook.
"""

from __future__ import annotations

from html import escape

from lesson_pages import Lesson, link

PARTS = {  # part -> slug of a lesson -> its title
    "I. One request": {
        "first_token": "The first token",
        "roofline": "The roofline",
        "kv_cache": "The KV cache",
        "text_in_text_out": "Text in, text out",
    },
    "II. Memory": {
        "paged_blocks": "Paged blocks",
        "prefix_hash": "Prefix hashes",
        "radix_tree": "The radix tree",
        "copy_on_write": "Copy on write",
    },
    "III. Scheduling": {
        "continuous_batching": "Continuous batching",
        "chunked_prefill": "Chunked prefill",
        "preemption": "Preemption",
        "cache_aware_scheduling": "Cache-aware scheduling",
    },
    "IV. A service": {"server": "A server", "measuring": "Measuring"},
    "V. Fewer bytes": {
        "int8_int4": "Int8 and int4",
        "gptq_awq": "GPTQ and AWQ",
        "low_floats": "Low floats",
        "gguf": "GGUF",
    },
    "VI. Kernels": {
        "fused_kernels": "Fused kernels",
        "flash_attention": "Flash attention",
        "paged_attention": "Paged attention",
        "graphs_and_builds": "Graphs and builds",
    },
    "VII. Fewer steps, shaped answers": {
        "speculation": "Speculation",
        "structured_output": "Structured output",
        "programs": "Programs",
        "lora": "LoRA",
    },
    "VIII. Many devices, other memories": {
        "parallel": "Many devices",
        "experts": "Experts",
        "other_memories": "Other memories",
        "moving_kv": "Moving KV",
        "fleet": "A fleet",
    },
    "IX. Choosing": {"choosing_an_engine": "Choosing an engine"},
}
PATHS = {  # who -> numbers of lessons
    "You have one weekend": (1, 2, 3, 5, 9, 10),
    "You are about to read vLLM": (1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 13, 21, 23, 27),
    "You are about to read SGLang": (1, 2, 3, 5, 7, 9, 12, 24, 25, 31),
    "You are after kernels": (2, 3, 15, 17, 19, 20, 21, 22),
    "You run a platform": (1, 2, 5, 9, 10, 13, 14, 30, 31, 32),
    "You only choose an engine": (2, 14, 32),
}


def planned() -> list[tuple[str, str]]:
    """(slug, title) of every lesson; the first is number 1."""
    return [both for part in PARTS.values() for both in part.items()]


def paths_list(known: list[Lesson], base: str) -> str:
    """HTML: each way through, lesson by lesson."""
    return "".join(
        f"<h3>{escape(who)}</h3>{lessons_in_order(numbers, known, base)}"
        for who, numbers in PATHS.items()
    )


def plan_list(known: list[Lesson], base: str) -> str:
    """HTML: every lesson, part by part."""
    made, first = [], 1
    for part, titles in PARTS.items():
        numbers = range(first, first + len(titles))
        made.append(f"<h3>{escape(part)}</h3>{lessons_in_order(numbers, known, base)}")
        first = numbers.stop
    return "".join(made)


def lessons_in_order(numbers: tuple[int, ...] | range, known: list[Lesson], base: str) -> str:
    """Number and title of each; a link where it is written."""
    written = {one.about["number"]: one for one in known}
    items = []
    for number in numbers:
        said = f"{number:02} {escape(planned()[number - 1][1])}"
        if number in written:
            said = link(f"{base}lessons/{written[number].notebook.stem}.html", said)
        items.append(f"<li>{said}</li>")
    return f'<ul class="facts path">{"".join(items)}</ul>'
