"""What the calculators of the site know: models and machines as minivllm/bench has them, so that
browser and simulator cannot disagree about a number.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from minivllm.bench.hardware import HARDWARE
from minivllm.bench.model_shapes import MODELS, ModelShape
from minivllm.bench.roofline import HEAD_BITS, Constants


def model(shape: ModelShape) -> dict:
    return {
        "name": shape.name,
        "layers": shape.num_layers,
        "heads": shape.num_heads,
        "kvHeads": shape.num_kv_heads,
        "headDim": shape.head_dim,
        "maxTokens": shape.max_position_embeddings,
        "sharedParams": shape.shared_params,
        "expertParams": shape.num_layers * shape.expert_params,
        "experts": shape.num_experts,
        "expertsPerToken": shape.experts_per_token,
        "headParams": shape.head_params,
        "embeddingParams": shape.embedding_params,
    }


def data() -> str:
    """A script that sets CALCULATORS: a page opened from a folder may load a script, not JSON."""
    constants = asdict(Constants())
    machines = {
        key: {
            "name": one.name,
            "memoryBytes": one.memory_bytes,
            "bytesPerSecond": one.memory_bytes_per_s,
            "flopsPerSecond": one.flops_per_s[16],
            "source": f"{one.source}, {one.date}",
        }
        for key, one in HARDWARE.items()
    }
    known = {
        "models": {key: model(shape) for key, shape in MODELS.items()},
        "machines": machines,
        "headBits": HEAD_BITS,
        "computeEfficiency": constants["compute_efficiency"],
        "memoryEfficiency": constants["memory_efficiency"],
        "secondsPerStep": constants["seconds_per_step"],
        "secondsPerRequest": constants["seconds_per_request"],
    }
    return f"window.CALCULATORS = {json.dumps(known)};\n"
