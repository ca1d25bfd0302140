"""Each engine of a comparison behind one call: requests in, the moment of every token out.

An engine takes options as strings, and `run(requests, shared)`: all requests at once, each
(prompt ids, number of new tokens), greedy, end-of-sequence ignored; the first `shared` ids are the
same in all. It returns, per request, the seconds since the start at which each new token came.
Run by the Python that the engine is installed in, so the file needs nothing but that engine:
    PYTHON peer_engines.py ENGINE MODEL THREADS [option=value ...]
It answers each line of stdin, {"requests": ..., "shared": ...}, by a line {"times": ..., ...}.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time

Requests = list[tuple[list[int], int]]
Times = list[list[float]]


class Minivllm:
    """This package's engine, stepped in this process. Options: those of `LLM`."""

    def __init__(self, model: str, threads: int, **options: str):
        import torch

        from ..entrypoints.llm import LLM
        from ..sampling_params import SamplingParams

        torch.set_num_threads(threads)
        self.make_params = lambda num_new: SamplingParams(
            temperature=0, max_tokens=num_new, ignore_eos=True
        )
        numbers = {name: int(value) for name, value in options.items() if value.isdigit()}
        self.engine = LLM(model, **{"max_model_len": 2048, **options, **numbers}).engine

    def run(self, requests: Requests, shared: int) -> Times:
        start, times = time.perf_counter(), [[] for _ in requests]
        for index, (prompt, num_new) in enumerate(requests):
            self.engine.add_request(str(index), prompt, self.make_params(num_new))
        while self.engine.has_unfinished_requests:
            reports = self.engine.step()
            now = time.perf_counter() - start
            for report in reports:
                times[int(report.request_id)] += [now] * len(report.outputs[0].new_token_ids)
        return times


class HuggingFace:
    """transformers generate(): static left-padded batches of `batch` requests in arrival order;
    a batch runs until its longest answer is done. The shared prefix is computed once and its
    cache copied into every batch."""

    def __init__(self, model: str, threads: int, dtype: str = "float32", batch: str = "8"):
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch, self.batch = torch, int(batch)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def run(self, requests: Requests, shared: int) -> Times:
        times, start = [], time.perf_counter()
        with self.torch.inference_mode():
            prefix = self.prefix_cache(requests[0][0][:shared]) if shared else None
            for first in range(0, len(requests), self.batch):
                group = requests[first : first + self.batch]
                moments = self.run_batch(group, shared, copy.deepcopy(prefix), start)
                times += [moments[:num_new] for _, num_new in group]
        return times

    def prefix_cache(self, token_ids: list[int]):
        from transformers import DynamicCache

        cache = DynamicCache(config=self.model.config)
        ids = self.torch.tensor([token_ids])
        self.model(ids, past_key_values=cache, logits_to_keep=1)
        return cache

    def run_batch(self, group: Requests, shared: int, prefix, start: float) -> list[float]:
        from transformers import GenerationConfig

        torch, moments = self.torch, []
        rests = [prompt[shared:] for prompt, _ in group]
        width, longest = max(map(len, rests)), max(num_new for _, num_new in group)
        pads = [[0] * (width - len(rest)) for rest in rests]
        rows = zip(group, pads, rests, strict=True)
        ids = torch.tensor([p[:shared] + pad + rest for (p, _), pad, rest in rows])
        rows = zip(pads, rests, strict=True)
        mask = torch.tensor([[1] * shared + [0] * len(p) + [1] * len(r) for p, r in rows])
        if prefix is not None:
            prefix.batch_repeat_interleave(len(group))

        def note_time(input_ids, scores, **unused):
            moments.append(time.perf_counter() - start)
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        config = GenerationConfig(
            max_new_tokens=longest, min_new_tokens=longest, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        self.model.generate(
            ids, attention_mask=mask, generation_config=config,
            stopping_criteria=[note_time], past_key_values=prefix,
        )  # fmt: skip
        return moments


class VLLM:
    """vLLM's offline engine, stepped in this process; its prefix cache is on, as by default."""

    def __init__(
        self, model: str, threads: int, dtype: str = "bfloat16", enforce_eager: str = "0",
        kv_gib: str = "4", max_batched: str = "", quantization: str = "",
        max_num_seqs: str = "32", max_model_len: str = "2048",
    ):  # fmt: skip
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", kv_gib)
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm import LLM, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        more = {"max_num_batched_tokens": int(max_batched)} if max_batched else {}
        more |= {"quantization": quantization} if quantization else {}
        more |= {"skip_tokenizer_init": not os.path.exists(os.path.join(model, "tokenizer.json"))}
        self.make_params = lambda num_new: SamplingParams(
            temperature=0, max_tokens=num_new, ignore_eos=True, detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )  # fmt: skip
        self.num_asked = 0
        self.engine = LLM(
            model, dtype=dtype, max_model_len=int(max_model_len), max_num_seqs=int(max_num_seqs),
            seed=0, enforce_eager=enforce_eager == "1", enable_prefix_caching=True, **more,
        ).llm_engine  # fmt: skip

    def run(self, requests: Requests, shared: int) -> Times:
        self.engine.reset_prefix_cache()
        start, times, owner = time.perf_counter(), [[] for _ in requests], {}
        for index, (prompt, num_new) in enumerate(requests):
            self.num_asked += 1
            owner[str(self.num_asked)] = index
            self.engine.add_request(
                str(self.num_asked), {"prompt_token_ids": prompt}, self.make_params(num_new)
            )
        while self.engine.has_unfinished_requests():
            outputs = self.engine.step()
            now = time.perf_counter() - start
            for out in outputs:  # newer versions append a part of their own to the id
                index = owner[out.request_id.split("-")[0]]
                times[index] += [now] * len(out.outputs[0].token_ids)
        return times


class LlamaCpp:
    """llama-cpp-python's low-level API under a small continuous-batching loop like llama-server's:
    a step decodes one token of each running sequence and fills the rest of the batch (n_batch
    tokens) with prompt chunks. Greedy by numpy argmax. A shared prefix is computed once in
    sequence 0 and copied to the others. unified=1: one KV buffer for all sequences (a copy shares
    cells), 0: one stream each."""

    def __init__(
        self, model: str, threads: int, unified: str = "0", n_batch: str = "512",
        flash: str = "-1", slots: str = "32", repack: str = "1", max_model_len: str = "1280",
    ):  # fmt: skip
        import ctypes

        import llama_cpp
        import numpy

        self.lib, self.numpy = llama_cpp, numpy
        self.silence = llama_cpp.llama_log_callback(lambda *unused: None)
        llama_cpp.llama_log_set(self.silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        how = llama_cpp.llama_model_default_params()
        how.use_extra_bufts = repack == "1"
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), how)
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocab)
        self.slots, self.n_batch = int(slots), int(n_batch)
        cells = int(max_model_len)
        self.many = self.context(
            cells * self.slots, self.slots, threads, unified == "1", int(flash)
        )
        self.one = self.context(cells, 1, threads, True, int(flash))
        self.batch = llama_cpp.llama_batch_init(max(self.n_batch, 64), 0, 1)

    def context(self, num_cells: int, slots: int, threads: int, unified: bool, flash: int):
        how = self.lib.llama_context_default_params()
        how.n_ctx, how.n_seq_max, how.kv_unified = num_cells, slots, unified
        how.n_batch, how.n_ubatch = max(self.n_batch, 64), self.n_batch
        how.n_threads = how.n_threads_batch = threads
        how.flash_attn_type, how.no_perf = flash, True
        context = self.lib.llama_init_from_model(self.model, how)
        assert context, "llama.cpp made no context"
        return context

    def step(self, context, items: list[tuple[int, int, int, int]]) -> list[int]:
        """items: (token, position, sequence, wants scores). Greedy ids of those that want them."""
        batch = self.batch
        batch.n_tokens = len(items)
        for i, (token, position, sequence, wants) in enumerate(items):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wants
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        status = self.lib.llama_decode(context, batch)
        assert status == 0, f"llama_decode returned {status}"
        ids = []
        for i, item in enumerate(items):
            if item[3]:
                scores = self.lib.llama_get_logits_ith(context, i)
                row = self.numpy.ctypeslib.as_array(scores, shape=(self.vocab_size,))
                ids.append(int(row.argmax()))
        return ids

    def run(self, requests: Requests, shared: int) -> Times:
        context = self.one if len(requests) == 1 else self.many
        memory = self.lib.llama_get_memory(context)
        self.lib.llama_memory_clear(memory, False)
        start, times = time.perf_counter(), [[] for _ in requests]
        self.share_prefix(context, memory, requests[0][0][:shared])
        waiting, free = list(range(len(requests))), list(range(self.slots - 1, -1, -1))
        running = {}  # request: [sequence, prompt tokens done, last token]
        while waiting or running:
            while waiting and free:
                running[waiting.pop(0)] = [free.pop(), shared, None]
            items, owners = self.plan(requests, running, times)
            ids = self.step(context, items)
            now = time.perf_counter() - start
            for request, token in zip(owners, ids, strict=True):
                times[request].append(now)
                running[request][2] = token
                if len(times[request]) == requests[request][1]:
                    sequence = running.pop(request)[0]
                    self.lib.llama_memory_seq_rm(memory, sequence, -1, -1)
        return times

    def share_prefix(self, context, memory, prefix: list[int]) -> None:
        for start in range(0, len(prefix), self.n_batch):
            chunk = prefix[start : start + self.n_batch]
            self.step(context, [(token, start + i, 0, 0) for i, token in enumerate(chunk)])
        for sequence in range(1, self.slots if prefix else 0):
            self.lib.llama_memory_seq_cp(memory, 0, sequence, -1, -1)

    def plan(self, requests: Requests, running: dict, times: Times) -> tuple[list, list[int]]:
        """One step: the next token of each that decodes, then prompt chunks in arrival order."""
        items, owners = [], []
        for request, (sequence, done, last) in running.items():
            if done == len(requests[request][0]):
                items.append((last, done + len(times[request]) - 1, sequence, 1))
                owners.append(request)
        for request, state in running.items():
            prompt, start = requests[request][0], state[1]
            end = min(len(prompt), start + self.n_batch - len(items))
            if start < end:
                last = len(prompt) - 1
                items += [(prompt[i], i, state[0], int(i == last)) for i in range(start, end)]
                state[1] = end
                if end == len(prompt):
                    owners.append(request)
        return items, owners


ENGINES = {"minivllm": Minivllm, "hf": HuggingFace, "vllm": VLLM, "llamacpp": LlamaCpp}


def peak_rss_mib() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve(engine: str, model: str, threads: int, options: dict[str, str]) -> None:
    """Load, say so, then answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the engine prints goes to stderr

    def say(**fields) -> None:
        print(json.dumps({**fields, "rss_mib": peak_rss_mib()}), file=answers, flush=True)

    start = time.perf_counter()
    loaded = ENGINES[engine](model, threads, **options)
    say(load_s=time.perf_counter() - start)
    for line in sys.stdin:
        asked = json.loads(line)
        start = time.perf_counter()
        times = loaded.run(asked["requests"], asked["shared"])
        say(times=times, wall_s=time.perf_counter() - start)


if __name__ == "__main__":
    serve(*sys.argv[1:3], int(sys.argv[3]), dict(o.split("=", 1) for o in sys.argv[4:]))
