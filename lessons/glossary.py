"""The course's words, one sentence each, and the engine file where a word lives. Hover text in
lessons and on the site; the site's glossary page is made of it. Standard library only."""

from __future__ import annotations

from html import escape
from typing import NamedTuple


class Entry(NamedTuple):
    says: str  # one sentence
    file: str = ""  # below minivllm/; "": no one file


GLOSSARY: dict[str, Entry] = {
    # text and model
    "token": Entry(
        "A piece of text that a model knows by number: a word, a part of one, or a single sign.",
        "tokenizer/bpe.py",
    ),
    "token id": Entry("A token's number in the vocabulary.", "tokenizer/tokenizer.py"),
    "vocabulary": Entry("All the tokens that a model knows.", "tokenizer/tokenizer.py"),
    "tokenizer": Entry(
        "Turns text into token ids, and token ids into text.", "tokenizer/tokenizer.py"
    ),
    "detokenizer": Entry(
        "Turns token ids into text as they come, and holds back half a character.",
        "tokenizer/detokenizer.py",
    ),
    "BPE": Entry(
        "Byte-pair encoding: a vocabulary made by joining the commonest neighbours, again and "
        "again.",
        "tokenizer/bpe.py",
    ),
    "prompt": Entry("The text that a model is given to continue."),
    "model": Entry(
        "A function made of many learnt numbers: token ids go in, a score for every token of the "
        "vocabulary comes out.",
        "models/transformer.py",
    ),
    "weights": Entry(
        "The numbers of a model, learnt once and read at every step.", "models/loader.py"
    ),
    "score": Entry(
        "What a model gives each token of its vocabulary: the higher, the likelier it comes next; "
        "also called a logit.",
        "sample/sampler.py",
    ),
    "logit": Entry("A score, before scores are turned into probabilities.", "sample/sampler.py"),
    "logprob": Entry(
        "The logarithm of a token's probability, as the model itself sees it.", "outputs.py"
    ),
    "sampling": Entry("Choosing the next token by the scores.", "sample/sampler.py"),
    "temperature": Entry(
        "How much chance has a say when a token is chosen; 0: none, the highest score wins.",
        "sampling_params.py",
    ),
    "greedy": Entry("Always taking the token with the highest score.", "engine/greedy.py"),
    "seed": Entry(
        "A number that settles every draw, so that the same request gives the same text again.",
        "philox.py",
    ),
    "end token": Entry(
        "A token by which a model says that it is done; engines write EOS.",
        "scheduler/stopping.py",
    ),
    # one step
    "engine": Entry(
        "Everything around a model that serves requests: queue, memory, loop.", "engine/core.py"
    ),
    "Request": Entry(
        "One prompt, what was written so far, and how much of both is computed.", "request.py"
    ),
    "step": Entry("One round of the engine: plan, execute, sample, update.", "engine/core.py"),
    "scheduler": Entry(
        "Decides which requests are computed in the next step, and how many tokens of each.",
        "scheduler/scheduler.py",
    ),
    "plan": Entry(
        "What the scheduler wants computed in one step: `SchedulerOutput`.", "outputs.py"
    ),
    "row": Entry("One request's part of a plan.", "outputs.py"),
    "message": Entry(
        "A frozen bundle of numbers, strings and tuples that passes from one room to the next.",
        "outputs.py",
    ),
    "SchedulerOutput": Entry("The message that is the plan of one step.", "outputs.py"),
    "ModelRunnerOutput": Entry("The message that says what came of a step.", "outputs.py"),
    "EngineCoreRequest": Entry(
        "The message by which a request enters the engine's core.", "outputs.py"
    ),
    "RequestOutput": Entry("The message that a user sees: text and ids so far.", "outputs.py"),
    "EngineCore": Entry(
        "Scheduler on one side, executor on the other, and the step between them.",
        "engine/core.py",
    ),
    "room": Entry("A folder of the engine with one task of its own.", "__init__.py"),
    "control plane": Entry(
        "The half of the engine that decides; it needs nothing but Python.", "engine/core.py"
    ),
    "data plane": Entry("The half of the engine that computes.", "worker/worker.py"),
    "Executor": Entry(
        "The door between the two halves: a plan goes in, a result comes out.", "executor/base.py"
    ),
    "PlainExecutor": Entry(
        "An executor in plain Python, slow and readable, that runs in a browser too.",
        "executor/plain.py",
    ),
    "SimExecutor": Entry(
        "An executor that moves a clock by a model of a GPU and invents the tokens.",
        "executor/sim.py",
    ),
    "Worker": Entry(
        "Owns the device, the weights and the KV memory; never decides.", "worker/worker.py"
    ),
    "ModelRunner": Entry(
        "Turns a plan into tensors, runs the model over them and samples.",
        "worker/model_runner.py",
    ),
    "trace": Entry(
        "A file of every message that crossed the door, and the scheduler's reasons.",
        "metrics/trace.py",
    ),
    "num_computed_tokens": Entry(
        "How many of a request's tokens have their keys and values in memory.", "request.py"
    ),
    "prefill": Entry("Computing a prompt's tokens, many in one step.", "scheduler/scheduler.py"),
    "decode": Entry("Computing one new token of an answer in a step.", "scheduler/scheduler.py"),
    "TTFT": Entry(
        "Time to first token: from a request's arrival until its first token is there, in "
        "seconds (`ttft_s`).",
        "outputs.py",
    ),
    "ITL": Entry("Inter-token latency: the time between two tokens of one answer."),
    "TPOT": Entry(
        "Time per output token: the mean time between tokens after the first.",
        "bench/report.py",
    ),
    "throughput": Entry("Tokens, or requests, that an engine finishes in a second."),
    "goodput": Entry(
        "Requests finished in a second within the latency that was promised.", "bench/report.py"
    ),
    # memory
    "KV": Entry(
        "Keys and values, two lists of numbers for each past token in each layer: attention finds "
        "the token by its key, and takes from it its value.",
        "worker/kv_tensors.py",
    ),
    "KV heads": Entry(
        "The equal parts that a layer's keys and values consist of; several heads of attention may "
        "read the same one.",
        "layers/attention.py",
    ),
    "KV cache": Entry(
        "The memory of keys and values, which spares computing past tokens again.",
        "worker/kv_tensors.py",
    ),
    "kv_bytes": Entry("Bytes of KV.", "kvcache/spec.py"),
    "attention": Entry(
        "The part of a model by which a token looks at the tokens before it.",
        "layers/attention.py",
    ),
    "block": Entry(
        "A piece of KV memory for a fixed number of tokens; other engines say page.",
        "kvcache/block_pool.py",
    ),
    "block_size": Entry("How many tokens a block holds.", "config.py"),
    "block pool": Entry(
        "All blocks: who reads which, and which are free.", "kvcache/block_pool.py"
    ),
    "block_table": Entry(
        "A request's blocks in order: token i is in the block at index i // block_size.",
        "kvcache/block_table.py",
    ),
    "slot": Entry("The place of one token's KV: block x block_size + offset."),
    "slot_mapping": Entry(
        "For each token that a step computes, the slot its KV goes to.", "kvcache/block_table.py"
    ),
    "ref_cnt": Entry(
        "How many requests read a block; at 0 it may be used again.", "kvcache/block_pool.py"
    ),
    "null block": Entry("Block 0, which nobody is given: padding reads it.", "outputs.py"),
    "allocate_slots": Entry(
        "Grows a request's block table so that its next tokens have a place.",
        "kvcache/kv_cache_manager.py",
    ),
    "free": Entry("Gives a request's blocks back.", "kvcache/kv_cache_manager.py"),
    "fork": Entry(
        "Starts a request on another's blocks, which both then read.",
        "kvcache/kv_cache_manager.py",
    ),
    "copy-on-write": Entry(
        "Sharing until somebody writes: then the writer gets a copy of its own.",
        "kvcache/kv_cache_manager.py",
    ),
    "fragmentation": Entry(
        "Memory that holds nothing and is of no use to anybody else: in pieces too small (external "
        "waste), or promised to a token that never comes (internal waste)."
    ),
    "reserved waste": Entry("Memory set aside for a token that will come, but later."),
    "internal waste": Entry(
        "Memory that a request owns and that no token ever comes to: behind the end of its answer."
    ),
    "external waste": Entry("Free memory between requests, in pieces too small for the next."),
    "prefix cache": Entry(
        "Keeps blocks whose tokens begin many prompts, so that nobody computes them twice.",
        "kvcache/prefix_cache.py",
    ),
    "get_computed_blocks": Entry(
        "The cached blocks that hold the start of a request.", "kvcache/kv_cache_manager.py"
    ),
    "match_prefix": Entry(
        "The longest chain of full cached blocks that begins a list of tokens.",
        "kvcache/prefix_cache.py",
    ),
    "insert": Entry("Offers computed blocks to the prefix cache.", "kvcache/prefix_cache.py"),
    "evict": Entry(
        "Makes the prefix cache give up blocks that nobody reads, the longest idle first.",
        "kvcache/prefix_cache.py",
    ),
    "extra_key": Entry(
        "What sets equal tokens apart in the prefix cache: an adapter, a tenant.", "outputs.py"
    ),
    "KVConnector": Entry("Moves KV to and from other memories and machines."),
    # scheduling
    "continuous batching": Entry(
        "Choosing the batch anew at every step, so that who ends makes room at once; also called "
        "iteration-level scheduling.",
        "scheduler/scheduler.py",
    ),
    "static batching": Entry(
        "Keeping a batch together until its last request has ended.", "scheduler/policy.py"
    ),
    "batch": Entry("The requests that are computed in one step.", "scheduler/plan.py"),
    "token budget": Entry(
        "The most tokens that one step may compute, over all requests.", "config.py"
    ),
    "chunked prefill": Entry(
        "Computing a long prompt in pieces over several steps.", "scheduler/scheduler.py"
    ),
    "admission": Entry("Letting a waiting request own blocks and run.", "scheduler/scheduler.py"),
    "preemption": Entry(
        "Stopping a running request to use its memory; it goes on later, with the same text.",
        "scheduler/preemption.py",
    ),
    "recompute": Entry(
        "Getting a preempted request's KV back by computing it again.", "scheduler/scheduler.py"
    ),
    "swap": Entry(
        "Moving a preempted request's KV to the host's memory and back.",
        "kvcache/host_blocks.py",
    ),
    "policy": Entry("The order in which waiting requests are tried.", "scheduler/policy.py"),
    "Orca": Entry(
        "The system of Yu and others (OSDI 2022), the first that chose its batch anew at each step."
    ),
    "bfloat16": Entry(
        "A number in 16 bits: the range of a 32-bit one, with about three decimal digits."
    ),
    "FLOP": Entry("A floating-point operation: one addition or one multiplication."),
    "roofline": Entry(
        "The least time that a step can take: by its arithmetic or by the bytes it moves, "
        "whichever is more.",
        "bench/roofline.py",
    ),
    # the course
    "lab": Entry("An exercise: functions of the engine whose bodies you write."),
    "hole": Entry("A function of the engine whose body is taken out for a lab."),
    "modelled": Entry("By the clock of a simulated GPU, not measured on one.", "executor/sim.py"),
}


def term(word: str, shown: str = "") -> str:
    """A word as HTML that tells its meaning under the mouse, on focus and to a screen reader.
    shown: how it is written here. Raises ValueError for a word that is not in the glossary."""
    if word not in GLOSSARY:
        raise ValueError(f"the glossary has no {word!r}")
    meaning = escape(GLOSSARY[word].says.replace("`", ""), quote=True)
    return f'<abbr class="mv-term" tabindex="0" title="{meaning}">{escape(shown or word)}</abbr>'
