"""GPUs: memory, bandwidth, peak rates and, where kernels were measured, their laws (``gpus.csv``)."""

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from tracekit.catalogue.names import nearest, shortened, squeezed, words
from tracekit.config import GIB
from tracekit.errors import ConfigError

_NOISE: Final = frozenset(
    {"nvidia", "amd", "tesla", "geforce", "instinct", "gpu", "graphics", "card", "the", "x", "oam"}
)
_COUNTED: Final = re.compile(r"^\s*\d+\s*x\s*(?=[a-z])|:\d+\s*$", re.IGNORECASE)
_OF_THE_PART: Final = re.compile(r"(hbm|sxm|pcie|ddr)\d\w*|\d{1,3}(gb?)?")
"""Words with digits that many GPUs share."""
_ALIASES: Final = {
    "h100": "H100-SXM", "h100sxm5": "H100-SXM", "h100hbm3": "H100-SXM", "h20080gb": "H200-SXM", "h200": "H200-SXM",
    "h800": "H800-SXM", "a100": "A100-80-SXM", "a100sxm": "A100-80-SXM", "a100sxm4": "A100-80-SXM",
    "a10080gb": "A100-80-SXM", "a10040gb": "A100-40-SXM", "a100pcie": "A100-80-PCIe", "a800": "A800-80-SXM",
    "rtx6000ada": "RTX6000Ada", "rtxpro6000": "RTXPRO6000-Server", "rtx6000pro": "RTXPRO6000-Server",
    "rtxpro6000blackwell": "RTXPRO6000-Server", "pro6000": "RTXPRO6000-Server", "gh200": "GH200-96",
    "mi250": "MI250-GCD", "4090": "RTX4090", "3090": "RTX3090", "5090": "RTX5090", "a10": "A10G",
    "rtx6000adageneration": "RTX6000Ada", "h100hbm380gb": "H100-SXM", "b200sxm": "B200", "b300sxm6ac": "B300",
}  # fmt: skip
_AMBIGUOUS: Final = {
    "H100-SXM": "taken as the SXM part (H100-PCIe and H100-NVL are others)",
    "A100-80-SXM": "taken as the 80 GB SXM part (A100-40-SXM, A100-40-PCIe and A100-80-PCIe are others)",
    "A100-40-SXM": "taken as the SXM part (A100-40-PCIe is another)",
    "RTXPRO6000-Server": "taken as the Server Edition (RTXPRO6000-WS is the other)",
    "GH200-96": "taken as the 96 GB part (GH200-144 is the other)",
    "A10G": "taken as the A10G",
}


@dataclass(frozen=True)
class Gpu:
    """One accelerator.

    ``total_gib``: what the driver reports and vLLM multiplies by ``gpu_memory_utilization``. Rates are dense peaks in
    TFLOP/s, bandwidth in GB/s; None: it has no such units or nobody says. ``source``: where the figures come from;
    ``is_certain`` False: from memory, not verified.
    """

    name: str
    cuda_name: str
    marketed_gb: float
    total_gib: float
    bandwidth_gbps: float
    bf16_tflops: float | None
    fp16_tflops: float | None
    fp8_tflops: float | None
    fp4_tflops: float | None
    interconnect: str
    compute_capability: str
    source: str
    laws: dict[str, float]

    @property
    def is_certain(self) -> bool:
        """Whether the figures have a source."""
        return not self.source.startswith("memory")

    @property
    def total_bytes(self) -> int:
        """``total_gib`` in bytes."""
        return int(self.total_gib * GIB)


@dataclass(frozen=True)
class GpuMatch:
    """The GPU a name stands for, and what was assumed to say so (None: nothing)."""

    gpu: Gpu
    note: str | None


_COLUMNS: Final = 12


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every GPU of the catalogue."""
    text = (files("tracekit.catalogue") / "gpus.csv").read_text(encoding="utf-8")
    return tuple(_gpu(row) for row in csv.DictReader(text.splitlines()))


def _gpu(row: dict[str, str]) -> Gpu:
    def rate(name: str) -> float | None:
        return float(row[name]) if row[name] else None

    laws = {name: float(value) for name, value in list(row.items())[_COLUMNS:] if value}
    return Gpu(
        row["gpu"], row["cuda_name"], float(row["marketed_GB"]), float(row["cuda_GiB"]), float(row["hbm_GBps"]),
        rate("bf16_dense_TF"), rate("fp16_dense_TF"), rate("fp8_dense_TF"), rate("fp4_dense_TF"),
        row["interconnect_GBps_per_dir"], row["compute_cap"], row["source"], laws,
    )  # fmt: skip


def find_gpu(name: str) -> GpuMatch:
    """The GPU that a log or a person calls ``name``; raises ``ConfigError`` that offers the nearest.

    A number of GPUs (``8xH100``) says nothing of parallel sizes: the note says that it is not read.
    """
    one = _COUNTED.sub("", name)
    found = _find(one)
    if found is None:
        known = [known for gpu in all_gpus() for known in (gpu.name, gpu.cuda_name)]
        near = ", ".join(nearest(one, known))
        offered = f"nearest: {near}" if near else f"it has {', '.join(gpu.name for gpu in all_gpus())}"
        msg = f"GPU {shortened(name)} is not in the catalogue; {offered}"
        raise ConfigError(msg)
    if one == name:
        return found
    notes = [found.note] if found.note else []
    return GpuMatch(found.gpu, "; ".join([*notes, f"how many GPUs {name} is, is not read: set tensor_parallel_size"]))


def _find(name: str) -> GpuMatch | None:
    key = squeezed(name)
    gpus = {gpu.name: gpu for gpu in all_gpus()}
    for gpu in gpus.values():
        if key in {squeezed(gpu.name), squeezed(gpu.cuda_name)}:
            return GpuMatch(gpu, None)
    short = "".join(word for word in words(name) if word not in _NOISE)
    by_key = {squeezed(gpu.name): gpu for gpu in gpus.values()}
    by_key |= {"".join(w for w in words(gpu.cuda_name) if w not in _NOISE): gpu for gpu in gpus.values()}
    if short in by_key:
        return GpuMatch(by_key[short], None)
    if short in _ALIASES:
        found = gpus[_ALIASES[short]]
        note = _AMBIGUOUS.get(found.name)
        return GpuMatch(found, f"{name} is {note}" if note else None)
    return _by_words(name)


def _by_words(name: str) -> GpuMatch | None:
    """The GPU whose names and memory hold every word of ``name``, one of which tells it from others."""
    given = {word for word in words(name) if word not in _NOISE}
    if not any(any(map(str.isdigit, word)) and not _OF_THE_PART.fullmatch(word) for word in given):
        return None
    found = [gpu for gpu in all_gpus() if given <= _words_of(gpu)]
    if len(found) == 1:
        return GpuMatch(found[0], None)
    if len({words(gpu.name)[0] for gpu in found}) > 1:
        return None  # other GPUs, not other parts of one
    taken = next((gpu for gpu in found if gpu.name in _AMBIGUOUS), None)
    return GpuMatch(taken, f"{name} is {_AMBIGUOUS[taken.name]}") if taken else None


def _words_of(gpu: Gpu) -> set[str]:
    return {*words(gpu.name), *words(gpu.cuda_name), f"{gpu.marketed_gb:.0f}gb"}


def gpus_with(total_gib: float, tolerance: float = 0.012) -> list[Gpu]:
    """The GPUs whose driver reports about that much memory: candidates where a log names none."""
    return [gpu for gpu in all_gpus() if abs(gpu.total_gib - total_gib) <= tolerance * gpu.total_gib]
