"""minivllm: a complete LLM serving engine, small enough to read.

Two halves and one door. The control plane decides, in nothing but Python's standard library; the
data plane computes, in torch; only frozen messages (`outputs.py`) pass the door between them.

 text                                                                              text
  |                                                                                 ^
 entrypoints -> tokenizer -> engine -> scheduler -> kvcache                  tokenizer/detokenizer
                               |        (the plan: SchedulerOutput)                 ^
                               v                                             engine/output_processor
                           executor   <- the door                                   ^
                               |                                                    |
                             worker -> models -> layers -> kernels -> sample -> ModelRunnerOutput

One step is four lines: `EngineCore.step` in engine/core.py. Where to look:

  why does a request wait?             scheduler/scheduler.py    Scheduler._plan_waiting, ._admit
  who is stopped when memory is full?  scheduler/preemption.py   choose_victim
  which blocks hold a request's KV?    kvcache/block_table.py    BlockTable, slot_mapping
  where is the KV itself?              worker/kv_tensors.py      KVTensors
  how is a block freed?                kvcache/block_pool.py     BlockPool.release, .give_back
  what is a prefix hit?                kvcache/prefix_cache.py   PrefixCache.match_prefix
  what does a model compute?           models/transformer.py     Transformer.forward
  how do scores (logits) make a token? sample/sampler.py         sample, keep_mask, draw
  where do ids become text?            tokenizer/detokenizer.py  Detokenizer.push
  what do the halves tell each other?  outputs.py                SchedulerOutput, ModelRunnerOutput

The floor plan. A room imports only what stands above it, itself, or what tests/test_floor_plan.py
lists; that test fails when torch can be reached from the control plane.

minivllm/
  config.py sampling_params.py request.py outputs.py philox.py
  checkpoint/     registry.py download.py file_lock.py hub.py mapped_file.py gguf.py
                  safetensors.py model_config.py hf_config.py gguf_config.py keys.py
                  unsupported.py
  tokenizer/      tokenizer.py gguf_vocab.py chat_template.py detokenizer.py bpe.py
                  bpe_training.py bpe_file.py
  kvcache/        spec.py block_pool.py block_table.py kv_cache_manager.py host_blocks.py moves.py
                  prefix_cache.py hash_cache.py radix_cache.py caches.py
  metrics/        stats.py trace.py
  kernels/        reference.py
    cpu/          packed.py narrow.py layer.py decode.py prefetch.py
  executor/       base.py uniproc.py sim.py plain.py plain_model.py plain_kv.py
                  plain_sampler.py plain_weights.py
  scheduler/      scheduler.py plan.py policy.py preemption.py forks.py stopping.py report.py
  quantization/   gguf_blocks.py
  layers/         attention.py linear.py norm.py rotary.py activation.py embedding.py
  sample/         sampler.py logits_processors.py rules.py philox.py
  models/         transformer.py loader.py
  worker/         worker.py model_runner.py input_batch.py kv_tensors.py
  engine/         core.py greedy.py llm_engine.py input_processor.py output_processor.py replay.py
  entrypoints/    llm.py beam.py
  bench/          offline.py latency.py timed_run.py ladder.py ladder_report.py peaks.py record.py
                  control_plane.py against.py peers.py peer_engines.py peer_workload.py
                  peer_checkpoint.py hardware.py model_shapes.py roofline.py calibrate.py
                  workload.py arrivals.py simulate.py report.py plot.py outcome.py experiments.py
                  scheduling_experiments.py memory_experiments.py simulators.py
  commands/       options.py running.py generate.py chat.py pull.py bench.py bench_options.py
                  bench_offline.py bench_latency.py bench_ladder.py bench_against.py
                  bench_scheduler.py calibrating.py
                  simulate.py simulated_load.py doctor.py checks.py speed.py
  __main__.py

Importing this package loads neither torch nor numpy; what `__all__` names is loaded when it
is first asked for.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .entrypoints.beam import BeamSearchParams
    from .entrypoints.llm import LLM
    from .sampling_params import SamplingParams

# torch's threads on a CPU spin while they wait for one another. Beside other busy programs a step
# took hundreds of times as long so, and with this a twentieth of that; alone it loses a fiftieth.
# Read when torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

__all__ = ["LLM", "BeamSearchParams", "SamplingParams"]

_WHERE = {
    "LLM": "entrypoints.llm",
    "BeamSearchParams": "entrypoints.beam",
    "SamplingParams": "sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
