"""The shapes of periodic lines: statistics, iteration details, V0's preemption warnings."""

import re
from typing import Final, NamedTuple

STATS_START: Final = re.compile(r"(?:Engine (\d{1,9}): |(\d+) Engines Aggregated: )?Avg prompt throughput: ")
_HEADLESS: Final = re.compile(r"^[ a-zA-Z:]*?(?:throughput|eneration throughput): [\d.]+")
_PART: Final = re.compile(r"([A-Za-z][A-Za-z .]*?): ([\d.]{1,16})( tokens/s| reqs|%)\.?$")

ITERATION: Final = (
    r"Iteration\(([0-9]{1,15})\): ([0-9]{1,15}) context requests, ([0-9]{1,15}) context tokens, ([0-9]{1,15}) generation requests, "
    r"([0-9]{1,15}) generation tokens, iteration elapsed time: ([0-9]{1,9}\.?[0-9]{0,9}) ms"
    r"( \(dummy\))?(?:, [A-Za-z+ ]+ KV cache usage: ([0-9]+\.?[0-9]*)%)?(?:, encoder inputs: [0-9]+)?"
    r"(?:, encoder output embeddings: [0-9]+)?\s*$"
)
"""Index, context requests and tokens, generation requests and tokens, ms, dummy, KV cache usage in percent."""

ITERATION_NUMBERS: Final = ("context_reqs", "context_tokens", "decode_reqs", "decode_tokens", "ms")
"""The numbers behind ``Iteration(I): ``, in order."""

USUAL_STATS: Final = (
    r"(?:Engine [0-9]{1,9}: )?Avg prompt throughput: [0-9]{1,15}\.[0-9]{1,9} tokens/s, Avg generation throughput: [0-9]{1,15}\.[0-9]{1,9} tokens/s, "
    r"Running: [0-9]{1,15} reqs, Waiting: [0-9]{1,15} reqs, GPU KV cache usage: [0-9]{1,15}\.[0-9]{1,9}%"
    r"(?:, Prefix cache hit rate: [0-9]{1,15}\.[0-9]{1,9}%)?\s*$"
)
"""The statistics line that most versions print, without optional parts."""

STATS_NUMBERS: Final = ("prompt", "generation", "running", "waiting", "usage", "hit_rate")
"""The numbers behind ``Avg prompt throughput: ``, in order."""

ITERATION_START: Final = re.compile(r"(?:Engine (\d{1,9}): )?(?=Iteration\()")
PREEMPTION: Final = re.compile(
    r"Sequence group (\S+) is preempted by PreemptionMode\.(RECOMPUTE|SWAP) mode .*"
    r"(?:total_num_cumulative_preemption|total_cumulative_preemption_cnt)=(\d{1,15})"
)

PERIODIC: Final = re.compile(
    r"(?:Engine \d+: |\d+ Engines Aggregated: )?(?:Avg prompt throughput: |Iteration\(|Sequence group"
    r"|(?:SpecDecoding|Speculative|KV Transfer) metrics: |Prefix cache hit rate: GPU)"
)
V0_PREFIX: Final = re.compile(r"Prefix cache hit rate: GPU: ([\d.]+)%, CPU: ")


class Stats(NamedTuple):
    """One periodic statistics line; shares are 0..1, what was not printed is None."""

    engine: int | None
    label: str
    prompt_tps: float | None
    generation_tps: float | None
    running: int | None
    waiting: int | None
    swapped: int | None
    deferred: int | None
    kv_usage: float | None
    cpu_kv_usage: float | None
    prefix_hit_rate: float | None
    external_hit_rate: float | None
    mm_hit_rate: float | None

    @property
    def is_complete(self) -> bool:
        """Whether nothing that every version prints is missing, which is how a cut line shows."""
        needed = (self.prompt_tps, self.generation_tps, self.running, self.waiting, self.kv_usage)
        return None not in needed

    @property
    def generation(self) -> str:
        """``v0`` prints swapped requests, ``v1`` does not."""
        return "v1" if self.swapped is None else "v0"


def parse_stats(message: str) -> Stats | None:
    """Read a statistics message of any version; None when it is none. A cut one is returned incomplete."""
    start = STATS_START.match(message)
    if start is None:
        return None
    engine = int(start[1]) if start[1] else None
    label = message[: start.end()].partition(":")[0] if start[1] or start[2] else ""
    if engine is None and not start[2]:
        engine = 0
    return _stats(message[start.end() - len("Avg prompt throughput: ") :], engine, label)


def parse_headless_stats(text: str) -> Stats | None:
    """Read the rest of a statistics line whose head is lost (the first line of a cut log); None when it is none."""
    if not _HEADLESS.match(text):
        return None
    found = _stats("Avg prompt throughput: " + text.partition(": ")[2], 0, "")
    return found if found.generation_tps is not None else None


def _stats(text: str, engine: int | None, label: str) -> Stats:
    values: dict[str, float] = {}
    for part in text.rstrip().split(", "):
        found = _PART.match(part)
        if found is None:
            continue
        try:
            number = float(found[2])
        except ValueError:
            continue
        values.setdefault(_name(found[1], found[3]), number)
    running, waiting = _count(values, "Running"), _count(values, "Waiting")
    return Stats(
        engine,
        label,
        values.get("Avg prompt throughput"),
        values.get("Avg generation throughput"),
        running,
        _count(values, "Pending") if waiting is None else waiting,
        _count(values, "Swapped"),
        _count(values, "Deferred"),
        _share(values, "KV cache usage"),
        _share(values, "CPU KV cache usage") if "Swapped" in values else None,
        _share(values, "Prefix cache hit rate"),
        _share(values, "External prefix cache hit rate"),
        _share(values, "MM cache hit rate"),
    )


def _name(label: str, unit: str) -> str:
    """The device in front of "KV cache usage" differs; V0 prints two, of which the CPU's is the second."""
    if unit == "%" and label.endswith(" KV cache usage"):
        return "CPU KV cache usage" if label == "CPU KV cache usage" else "KV cache usage"
    return label


def _count(values: dict[str, float], name: str) -> int | None:
    value = values.get(name)
    return int(value) if value is not None and value.is_integer() else None


def _share(values: dict[str, float], name: str) -> float | None:
    value = values.get(name)
    if name == "KV cache usage" and value is None and "Swapped" not in values:
        # 0.33 names the device: on a CPU engine this is the only usage.
        value = values.get("CPU KV cache usage")
    return None if value is None else round(value / 100, 6)


class Iteration(NamedTuple):
    """One iteration line."""

    engine: int | None
    step: int
    context_requests: int
    context_tokens: int
    generation_requests: int
    generation_tokens: int
    elapsed_ms: float
    is_dummy: bool
    kv_usage: float | None


_ITERATION = re.compile(ITERATION)


def parse_iteration(message: str) -> Iteration | None:
    """Read an iteration message; None when it is none or is cut."""
    start = ITERATION_START.match(message)
    found = _ITERATION.match(message, start.end()) if start else None
    if start is None or found is None:
        return None
    step, context, tokens, decodes, decoded = (int(found[position]) for position in range(1, 6))
    usage = None if found[8] is None else float(found[8]) / 100
    engine = int(start[1]) if start[1] else None
    return Iteration(engine, step, context, tokens, decodes, decoded, float(found[6]), bool(found[7]), usage)
