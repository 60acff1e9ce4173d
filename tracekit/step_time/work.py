"""From a GPU and a model to the physical step time: the work of one step, and what the GPU's kernels achieve.

Laws measured on a GPU are used for it and its relatives of the same chip; a GPU without any gets the median of all
(``is_measured`` False). Approximations: what a layer does beside attention is taken from its parameters as one gated
MLP; sliding windows are read whole; state layers read nothing; experts are spread evenly.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any, Final

from tracekit.catalogue.gpus import Gpu
from tracekit.catalogue.models import CHUNKED, FULL, MLA, SLIDING, SPARSE_MLA, ModelShape
from tracekit.errors import ConfigError
from tracekit.step_time.physical import Gemm, Law, PhysicalParameters

_RELATIVES: Final = {
    "H800-SXM": "H100-SXM", "GH200-96": "H100-SXM", "GH200-144": "H200-SXM", "H100-NVL": "H100-SXM",
    "H100-PCIe": "H100-SXM", "H20": "H100-SXM", "GB200": "B200", "B300": "B200", "GB300": "B200",
    "RTXPRO6000-Server": "RTXPRO6000-Server", "RTXPRO6000-WS": "RTXPRO6000-Server", "RTX5090": "RTXPRO6000-Server",
    "A100-40-SXM": "A100-80-SXM", "A100-40-PCIe": "A100-80-SXM", "A100-80-PCIe": "A100-80-SXM",
    "A800-80-SXM": "A100-80-SXM", "L4": "L40S", "RTX4090": "L40S", "RTX6000Ada": "L40S",
}  # fmt: skip
"""GPUs of one architecture: their kernels reach about the same share of the peaks."""
_T0_NS: Final = 1_500_000.0
_PER_SEQ_NS: Final = 7_000.0
"""Input preparation, launches, sampling. Chosen with one run in view (fitted there: 2.6 ms + 7.3 us/request; vLLM 0.19)."""
_SYNCHRONOUS_T0_NS: Final = 700_000.0
_SYNCHRONOUS_PER_SEQ_NS: Final = 19_000.0
"""What the host adds to each step where it is not hidden behind the device: V1's Python, measured on 0.11.2."""
_ELEMENTWISE_EFFICIENCY: Final = 0.8
_EAGER_NS: Final = 7_000.0
"""A kernel's launch where no CUDA graph hides it; about ten kernels a layer."""
_KERNELS_A_LAYER: Final = 10
_FP8_BITS: Final = 8
_LARGEST_GRAPH: Final = 512


@dataclass(frozen=True)
class Deployment:
    """What besides GPU and model decides the step time: vLLM's flags, by their names.

    ``weight_bits``, ``kv_bits``: of one weight and of one cached value.
    """

    tensor_parallel_size: int = 1
    weight_bits: float = 16
    kv_bits: float = 16
    max_num_seqs: int = 256
    enforce_eager: bool = False
    async_scheduling: bool = True


@cache
def _laws() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("tracekit.step_time") / "laws.json").read_text(encoding="utf-8"))
    return found


def is_measured(gpu: Gpu) -> bool:
    """Whether kernels were measured on this very GPU."""
    return gpu.name in _laws()


def _law(gpu: Gpu, kind: str) -> dict[str, float]:
    """One kind of law: the GPU's, its relative's, else the median of all."""
    laws = _laws()
    name = gpu.name if gpu.name in laws else _RELATIVES.get(gpu.name)
    if name is not None and laws[name][kind] is not None:
        found: dict[str, float] = laws[name][kind]
        return found
    known = [law[kind] for law in laws.values() if law[kind] is not None]
    return {key: median(law[key] for law in known) for key in known[0]}


def physical_parameters(gpu: Gpu, model: ModelShape, deployment: Deployment) -> PhysicalParameters:
    """The catalogue's step time of one tensor-parallel rank; raises ``ConfigError`` where nothing can be said."""
    tp = deployment.tensor_parallel_size
    is_fp8 = deployment.weight_bits == _FP8_BITS and gpu.fp8_tflops is not None
    kind = "fp8" if is_fp8 else "bf16"
    peak = (gpu.fp8_tflops if is_fp8 else gpu.bf16_tflops or gpu.fp16_tflops) or 0.0
    if not peak or not gpu.bandwidth_gbps:
        msg = f"the catalogue does not know how fast {gpu.name} computes; give --step-time FILE, or --fit on a run"
        raise ConfigError(msg)
    bandwidth, law = gpu.bandwidth_gbps, _law(gpu, kind)
    decode, prefill = _law(gpu, "decode_attention"), _law(gpu, "prefill_attention")
    attention_peak = (gpu.bf16_tflops or gpu.fp16_tflops or peak) * 1e3 * prefill["compute_efficiency"]
    heads, layers = model.num_heads / tp, _attending(model)
    eager = _EAGER_NS * _KERNELS_A_LAYER * model.num_layers if deployment.enforce_eager else 0.0
    latency, allreduce = _allreduce(gpu, tp)
    num_allreduces = 2 * model.num_layers if tp > 1 else 0
    synchronous = not deployment.async_scheduling
    return PhysicalParameters(
        t0=_T0_NS + eager + synchronous * _SYNCHRONOUS_T0_NS,
        per_seq=_PER_SEQ_NS + synchronous * _SYNCHRONOUS_PER_SEQ_NS,
        gemm=Law(law["floor_us"] * 1e3, bandwidth * law["bandwidth_efficiency"], peak * 1e3 * law["compute_efficiency"]),
        gemms=_gemms(model, deployment),
        logits=_gemm(1, model.hidden_size, model.vocab_size / tp, 16),
        padding=() if deployment.enforce_eager else graph_sizes(deployment.max_num_seqs),
        elementwise_per_token=_elementwise_bytes(model, tp) * model.num_layers / (_ELEMENTWISE_EFFICIENCY * bandwidth),
        allreduce_floor=num_allreduces * latency,
        allreduce_per_token=num_allreduces * 2 * model.hidden_size / allreduce,
        attention_floor=layers * decode["floor_us"] * 1e3,
        attention_per_seq=layers * decode["per_seq_and_head_ns"] * heads,
        per_context_token=_kv_bytes(model, deployment) / (bandwidth * decode["bandwidth_efficiency"]),
        prefill_floor=layers * prefill["floor_us"] * 1e3,
        prefill_per_token=layers * prefill["per_token_and_head_ps"] / 1e3 * heads,
        per_attention_pair=layers * 4 * heads * model.head_size / attention_peak,
    )  # fmt: skip


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """The default of vLLM's ``cudagraph_capture_sizes`` (``VllmConfig._set_cudagraph_sizes``, 0.11 and later)."""
    largest = min(2 * max_num_seqs, _LARGEST_GRAPH)
    sizes = [1, 2, 4, *range(8, min(largest + 1, 256), 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def _gemm(count: float, inputs: float, outputs: float, bits: float) -> Gemm:
    return Gemm(count, inputs * outputs * bits / 8, 2 * (inputs + outputs), 2 * inputs * outputs)


def _gemms(model: ModelShape, deployment: Deployment) -> tuple[Gemm, ...]:
    """Attention's two products a layer, the experts', and whatever other weights there are as a gated MLP."""
    tp, bits, hidden = deployment.tensor_parallel_size, deployment.weight_bits, model.hidden_size
    plain = sum(letter in {FULL, SLIDING, CHUNKED} for letter in model.layers)
    query = model.num_heads * model.head_size
    pair = 2 * max(model.num_kv_heads, tp) * model.head_size
    attention = hidden * (query + 2 * model.num_kv_heads * model.head_size) + query * hidden
    found = [_gemm(plain, hidden, (query + pair) / tp, bits), _gemm(plain, query / tp, hidden, bits)] if plain else []
    others = float(model.num_parameters - model.num_embedding_parameters - plain * attention)
    if model.num_experts > model.num_experts_per_token and _expert_width(model):
        expert = 3 * hidden * _expert_width(model)
        unused = model.num_parameters - (model.num_active_parameters or model.num_parameters)
        sparse = unused / ((model.num_experts - model.num_experts_per_token) * expert)
        others -= sparse * model.num_experts * expert
        found += _expert_gemms(model, sparse, deployment)
    # The share of layers that have such weights is not known: they are spread over all of them.
    width = max(others, 0) / (3 * hidden * model.num_layers)
    if width >= 1:
        found += [
            _gemm(model.num_layers, hidden, 2 * width / tp, bits),
            _gemm(model.num_layers, width / tp, hidden, bits),
        ]
    return tuple(found)


def _expert_width(model: ModelShape) -> int:
    """An expert's width; Mixtral, gpt-oss and others say it as ``intermediate_size``."""
    return model.moe_intermediate_size or model.intermediate_size


def _expert_gemms(model: ModelShape, layers: float, deployment: Deployment) -> list[Gemm]:
    hidden, width = model.hidden_size, _expert_width(model) / deployment.tensor_parallel_size
    found = []
    for inputs, outputs in ((hidden, 2 * width), (width, hidden)):
        one = _gemm(layers, inputs, outputs, deployment.weight_bits)
        used = model.num_experts_per_token
        found.append(
            Gemm(layers, one.weight_bytes * model.num_experts, one.bytes_per_token * used, one.flops_per_token * used,
                 model.num_experts, used)
        )  # fmt: skip
    return found


def _elementwise_bytes(model: ModelShape, tp: int) -> float:
    """Bytes a token and layer: two norms with their residuals, rotation and cache write, the gated activation."""
    width = model.intermediate_size or model.moe_intermediate_size * max(model.num_experts_per_token, 1)
    attention = (model.num_heads + 2 * model.num_kv_heads) * model.head_size
    return 2 * (8 * model.hidden_size + (2 * attention + 3 * width) / tp)


def _attending(model: ModelShape) -> int:
    return sum(letter in {FULL, SLIDING, CHUNKED, MLA, SPARSE_MLA, "B"} for letter in model.layers)


def _kv_bytes(model: ModelShape, deployment: Deployment) -> float:
    """Bytes of the cache that one context token makes a step read, over all layers of one rank."""
    if model.latent_size:
        return _attending(model) * model.latent_size * deployment.kv_bits / 8
    heads = max(model.num_kv_heads / deployment.tensor_parallel_size, 1)
    return _attending(model) * 2 * heads * model.head_size * deployment.kv_bits / 8


def _allreduce(gpu: Gpu, tp: int) -> tuple[float, float]:
    """Latency in ns and bytes a ns of an all-reduce over so many GPUs."""
    if tp == 1:
        return 0.0, 1.0
    laws = _laws()
    name = gpu.name if gpu.name in laws else _RELATIVES.get(gpu.name)
    if name is not None and _is_nvlink(gpu) == (name not in {"L40S", "RTXPRO6000-Server"}):
        by_size = laws[name]["allreduce"]
        nearest = min(by_size, key=lambda size: (abs(int(size) - tp), size))
        return by_size[nearest]["latency_us"] * 1e3, by_size[nearest]["gbps"]
    numbers = re.findall(r" (\d+)", f" {gpu.interconnect}")
    link = float(numbers[0]) if numbers else 16.0
    return 10_000.0, 0.5 * link


def _is_nvlink(gpu: Gpu) -> bool:
    return gpu.interconnect.startswith("NVLink")
