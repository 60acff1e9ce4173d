# ruff: noqa: S311, S603, S607 - made-up data; the programs are named here
"""How fast logs and tables are read, beside ``grep -c`` in the same run: ``python -m benchmarks.reading``.

Logs are made here, in vLLM's own formats with moving clocks and ids of their own, since their speed depends on what
they hold. Each figure is of one process that does nothing else; its memory is the process's peak. ``--mb`` sets the
size of each log, ``--rows`` the rows of the CSV, ``--only NAME`` one of them.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_PID = "(APIServer pid=7) "
_STATS = (
    "Engine 000: Avg prompt throughput: {:.1f} tokens/s, Avg generation throughput: {:.1f} tokens/s, "
    "Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {:.1f}%, Prefix cache hit rate: {:.1f}%"
)
_PARAMS = (
    "SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, temperature=0.7, "
    "top_p=1.0, top_k=0, min_p=0.0, seed=None, stop=[], stop_token_ids=[], bad_words=[], "
    "include_stop_str_in_output=False, ignore_eos=False, max_tokens={}, min_tokens=0, logprobs=None, "
    "prompt_logprobs=None, skip_special_tokens=True, spaces_between_special_tokens=True, extra_args=None)"
)
_WORDS = [
    "the",
    "a",
    "cache",
    "it's",
    "\\n",
    '"said"',
    "of",
    "blocks,",
    "fast:",
    "and",
    "(more)",
    "then",
    "{{x}}",
    "[y]",
    "tokens",
    "=",
    "Grüße",
]


def _stamp(second: int) -> str:
    day = second // 86_400
    return f"{1 + day // 28:02}-{1 + day % 28:02} {second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"


def _stats_line(rng: random.Random, stamp: str) -> str:
    numbers = (rng.random() * 9e3, rng.random() * 3e3, rng.randrange(250), rng.randrange(30), rng.random() * 100)
    return f"{_PID}INFO {stamp} [loggers.py:271] {_STATS.format(*numbers, rng.random() * 100)}\n"


def _access_line(rng: random.Random, path: str = "POST /v1/chat/completions") -> str:
    client = f"10.0.{rng.randrange(99)}.{rng.randrange(250)}:{rng.randrange(30_000, 60_000)}"
    return f'{_PID}INFO:     {client} - "{path} HTTP/1.1" {200 if rng.random() < 0.995 else 400}{" OK" * 1}\n'


def default_log(rng: random.Random, second: int) -> Iterator[str]:
    """Ten seconds of a server as it logs by default: access lines, health checks, one statistics line."""
    for _ in range(rng.randrange(60)):
        yield _access_line(rng)
    yield _access_line(rng, "GET /health")
    yield _access_line(rng, "GET /metrics")
    yield _stats_line(rng, _stamp(second))


def request_log(rng: random.Random, second: int) -> Iterator[str]:
    """The same with request logging as of 0.13: parameters, no prompts."""
    for _ in range(rng.randrange(60)):
        name = f"chatcmpl-{rng.getrandbits(128):032x}"
        head = f"{_PID}INFO {_stamp(second)} [logger.py:57] Received request {name}: "
        yield f"{head}params: {_PARAMS.format(rng.randrange(4096))}, lora_request: None.\n"
        yield f"{_PID}INFO {_stamp(second)} [async_llm.py:587] Added request {name}.\n"
        yield _access_line(rng)
    yield _stats_line(rng, _stamp(second))


def prompt_log(rng: random.Random, second: int) -> Iterator[str]:
    """Request logging as up to 0.11, with prompts and token ids."""
    for _ in range(rng.randrange(30)):
        name = f"cmpl-{rng.getrandbits(128):032x}-0"
        words = " ".join(rng.choices(_WORDS, k=rng.randrange(20, 600)))
        tokens = ", ".join(map(str, rng.choices(range(100_000), k=rng.randrange(20, 700))))
        head = f"INFO {_stamp(second)} [logger.py:43] Received request {name}: "
        prompt = repr(words.replace("\\n", "\n"))
        yield (
            f"{head}prompt: {prompt}, params: {_PARAMS.format(rng.randrange(4096))}, prompt_token_ids: [{tokens}], "
            "prompt_embeds shape: None, lora_request: None, prompt_adapter_request: None.\n"
        )
        yield f"INFO {_stamp(second)} [async_llm.py:270] Added request {name}.\n"
        yield _access_line(rng).removeprefix(_PID)
    yield _stats_line(rng, _stamp(second)).removeprefix(_PID)


def iteration_log(rng: random.Random, second: int) -> Iterator[str]:
    """A line for each step (``--enable-logging-iteration-details``), about a hundred a second."""
    for number in range(1000):
        running = rng.randrange(1, 200)
        yield (
            f"{_PID}INFO {_stamp(second + number // 100)} [loggers.py:199] Engine 000: Iteration({second * 100 + number}): "
            f"{rng.randrange(3)} context requests, {rng.randrange(2048)} context tokens, {running} generation requests, "
            f"{running} generation tokens, iteration elapsed time: {rng.random() * 30:.2f} ms, "
            f"GPU KV cache usage: {rng.random() * 100:.1f}%\n"
        )
    yield _stats_line(rng, _stamp(second))


LOGS: dict[str, Callable[[random.Random, int], Iterator[str]]] = {
    "default": default_log,
    "requests": request_log,
    "prompts": prompt_log,
    "iterations": iteration_log,
}


def write_log(path: Path, kind: str, num_bytes: int) -> int:
    """Write a log of about so many bytes; returns how many lines it has."""
    rng = random.Random(1)
    written = lines = second = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        while written < num_bytes:
            part = list(LOGS[kind](rng, second))
            text = "".join(part)
            file.write(text)
            written += len(text.encode())
            lines += len(part)
            second += 10
    return lines


def write_csv(path: Path, rows: int) -> None:
    """A CSV of requests with six columns, as a gateway writes it."""
    rng = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        file.write("request_id,t_send,t_first,t_end,prompt_tokens,completion_tokens,status\n")
        for start in range(0, rows, 10_000):
            parts = []
            for number in range(start, min(start + 10_000, rows)):
                sent = 1_790_000_000 + number * 0.01
                first = sent + rng.random()
                parts.append(
                    f"req-{number},{sent:.6f},{first:.6f},{first + rng.random() * 20:.6f},{rng.randrange(1, 8000)},"
                    f"{rng.randrange(2, 900)},200\n"
                )
            file.write("".join(parts))


_ALONE = """
import json, resource, sys, time
from pathlib import Path
from tracekit.sources.files import material_of
from tracekit.sources.ingest import ingest
from tracekit.sources.observation import Options
from tracekit.sources.vllm_log import SOURCE
path, columns = Path(sys.argv[1]), sys.argv[2:]
began, cpu = time.perf_counter(), time.process_time()
if columns:
    account = ingest([path], columns=columns).info["sources"][0]["accounting"]
else:
    account = vars(SOURCE.read(material_of(path), Options()).accounting)
took = time.perf_counter() - began
print(json.dumps({"s": took, "cpu_s": time.process_time() - cpu, "account": account,
                  "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def _alone(path: Path, *columns: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, str(path), *columns], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _grep_s(path: Path) -> float:
    began = time.perf_counter()
    subprocess.run(["grep", "-c", "throughput", str(path)], check=True, capture_output=True)
    return time.perf_counter() - began


def _log_line(kind: str, path: Path, num_bytes: int) -> str:
    lines = write_log(path, kind, num_bytes)
    size = path.stat().st_size
    grep = _grep_s(path)
    found = _alone(path)
    account = found["account"]
    assert isinstance(account, dict)
    assert account["read"] == account["understood"] + account["other"] + account["unreadable"] == lines
    return (
        f"{kind:12}{size / 1e6:8.0f}{lines:14,}{size / 1e6 / found['s']:10.0f}{lines / found['s']:14,.0f}"
        f"{found['cpu_s']:9.1f}{found['peak'] / 1e9:10.2f}{size / 1e6 / grep:10.0f}"
    )


def main() -> None:
    """Print one line a log and one for the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=300, help="size of each log in MB")
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the CSV")
    parser.add_argument("--only", choices=[*LOGS, "csv"], help="only this one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kinds = [kind for kind in LOGS if given.only in {None, kind}]
        if kinds:
            print(
                f"{'log':12}{'MB':>8}{'lines':>14}{'MB/s':>10}{'lines/s':>14}{'CPU s':>9}{'peak GB':>10}{'grep MB/s':>10}"
            )
        for kind in kinds:
            path = Path(folder, f"{kind}.log")
            print(_log_line(kind, path, given.mb * 1_000_000), flush=True)
            path.unlink()
        if given.only in {None, "csv"}:
            path = Path(folder, "requests.csv")
            write_csv(path, given.rows)
            columns = ("request_id=request_id", "arrival=t_send", "first_token=t_first", "last_token=t_end",
                       "num_prompt_tokens=prompt_tokens", "num_output_tokens=completion_tokens", "finish_reason=status")  # fmt: skip
            found = _alone(path, *columns)
            size = path.stat().st_size / 1e6
            print(
                f"csv: {given.rows:,} rows, {size:.0f} MB in {found['s']:.1f} s ({found['cpu_s']:.1f} CPU s), "
                f"{size / found['s']:.0f} MB/s, peak {found['peak'] / 1e9:.2f} GB"
            )


if __name__ == "__main__":
    main()
