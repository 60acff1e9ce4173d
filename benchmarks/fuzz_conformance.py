"""Random workloads through a live vLLM and through the model, every field of every step compared.

``python -m benchmarks.fuzz_conformance --oracle DIR --vllm 0.33.0 --workloads 2000 --seed 1``: ``DIR`` holds the
recorder (``run_scheduler.py``) and ``venv-VERSION`` with the real vLLM; without it nothing is compared and the exit
code is 0. A difference is shrunk, printed and, with ``--save``, written as a recording for ``tracekit conform``.
"""

import argparse
import json
import re
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.fuzz_shrink import shrink
from benchmarks.fuzz_vllm import Answer, LiveVllm, NoVllmError
from benchmarks.fuzz_workloads import Case, Row, make_case
from tracekit.config import parse_version
from tracekit.conform import Difference, simulate
from tracekit.conform.compare import _first_difference
from tracekit.model.rules import Rules, rules_for


@dataclass
class Tally:
    """What came of the workloads so far."""

    workloads: int = 0
    steps: int = 0
    differing: list[int] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    crashes: Counter[str] = field(default_factory=Counter)
    harness: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    axes: Counter[str] = field(default_factory=Counter)
    storms: Counter[str] = field(default_factory=Counter)
    """The same axes, workloads with preemptions only."""

    @property
    def verdict(self) -> str:
        """The last line."""
        text = (
            f"{self.workloads} workloads, {self.steps} steps agree, {len(self.differing)} differ, "
            f"{self.refused.total()} refused, {self.crashes.total()} ended in vLLM's own crash"
        )
        return text + (f", {self.harness.total()} not compared (recorder)" if self.harness else "")


def compare(answer: Answer, simulated: list[Row] | str) -> Difference | str | None:
    """The first difference (text: the model itself raised)."""
    if isinstance(simulated, str):
        return simulated
    if answer.crash:  # whether the model foresaw it is counted, not compared
        simulated = simulated[: len(answer.rows)]
    return _first_difference(answer.rows, json.loads(json.dumps(simulated)))


def run_model(case: Case, rules: Rules) -> list[Row] | str:
    """The model's rows, or the text of what it raised."""
    try:
        return list(simulate(case.config, case.workload, rules))
    except Exception:  # noqa: BLE001 - a model that raises is a finding like any other
        return "the model raised\n" + "".join(traceback.format_exc().splitlines(keepends=True)[-8:])


def fuzz(live: LiveVllm, rules: Rules, args: argparse.Namespace) -> Tally:
    """Compare ``args.workloads`` cases; prints progress and differences."""
    tally = Tally()
    started = time.monotonic()
    for number in range(args.first, args.first + args.workloads):
        case = make_case(args.seed, number, storm=args.storm)
        if parse_version(live.version) < (0, 12, 0):
            case.config.pop("reset_running", None)  # vLLM has it from 0.12.0
        live.send(case)
        simulated = run_model(case, rules)
        answer = live.receive()
        tally.workloads += 1
        difference = _count(tally, case, answer, simulated)
        if difference is not None:
            tally.differing.append(number)
            print(f"\nDIFFERENCE in workload {number} of seed {args.seed}, vLLM {live.version}", flush=True)
            _explain(live, rules, case, number, args)
        if tally.workloads % args.every == 0:
            rate = tally.workloads / (time.monotonic() - started)
            print(f"[{rate:.1f}/s] {tally.verdict}", flush=True)
        if len(tally.differing) >= args.limit:
            print(f"stopped after {args.limit} differences", flush=True)
            break
    return tally


def _count(tally: Tally, case: Case, answer: Answer, simulated: list[Row] | str) -> Difference | str | None:
    if answer.harness or answer.refused:
        text = re.sub(r"\d+", "N", str(answer.harness or answer.refused))
        (tally.harness if answer.harness else tally.refused)[text] += 1
        return None
    difference = compare(answer, simulated)
    if difference is None and answer.crash:
        foreseen = "foreseen" if len(simulated) == len(answer.rows) else "NOT foreseen"
        tally.crashes[f"{foreseen} by the model: {answer.crash}"] += 1
    tally.steps += len(answer.rows) if difference is None else getattr(difference, "step", 0)
    for row in answer.rows:
        for key in ("preempted", "resumed", "aborted", "finished", "reset_preempted"):
            tally.events[key] += len(row.get(key, ()))
        tally.events["prefix hits"] += sum(1 for hit in row["cached"].values() if hit)
        tally.events["request-steps"] += len(row["scheduled"])
    tally.axes.update(["all", *case.axes])
    if any(row["preempted"] for row in answer.rows):
        tally.storms.update(["all", *case.axes])
    return difference


def _explain(live: LiveVllm, rules: Rules, case: Case, number: int, args: argparse.Namespace) -> None:
    def differs(smaller: Case) -> bool:
        simulated = run_model(smaller, rules)
        answer = live.run(smaller)
        return not (answer.harness or answer.refused) and compare(answer, simulated) is not None

    small = shrink(case, differs, args.tries)
    answer, simulated = live.run(small), run_model(small, rules)
    difference = compare(answer, simulated)
    print("config  ", json.dumps(small.config))
    for row in small.workload:
        print("request ", json.dumps(row))
    if answer.crash:
        print("vLLM then crashes:", answer.crash)
    if isinstance(difference, Difference):
        print("step    ", difference.step, "differs in", ", ".join(difference.keys))
        print("vLLM    ", json.dumps(difference.recorded))
        print("tracekit", json.dumps(difference.simulated), flush=True)
    else:
        print(difference or "shrinking lost it", flush=True)
    if args.save:
        folder = Path(args.save) / f"{live.version}-{args.seed}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(small.config, indent=1))
        (folder / "workload.jsonl").write_text("".join(json.dumps(row) + "\n" for row in small.workload))
        (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answer.rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_conformance", description=__doc__)
    parser.add_argument("--oracle", type=Path, required=True, help="folder with run_scheduler.py and venv-VERSION")
    parser.add_argument("--vllm", default="0.33.0", help="vLLM version")
    parser.add_argument("--rules", help="compare with another version's rules, to see that differences are found")
    parser.add_argument("--workloads", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first workload of the seed")
    parser.add_argument("--storm", action="store_true", help="tiny pools and long answers only")
    parser.add_argument("--limit", type=int, default=20, help="stop after so many differences")
    parser.add_argument("--tries", type=int, default=250, help="most runs to shrink a difference")
    parser.add_argument("--every", type=int, default=100, help="workloads between progress lines")
    parser.add_argument("--save", help="folder for the shrunk recordings")
    return parser.parse_args()


def main() -> int:
    args = _arguments()
    try:
        live = LiveVllm(args.oracle, args.vllm)
    except NoVllmError as error:
        print(f"skipped: {error}")
        return 0
    try:
        tally = fuzz(live, rules_for(args.rules or args.vllm), args)
    finally:
        live.close()
    for what in ("refused", "crashes", "harness"):
        for text, count in getattr(tally, what).most_common():
            print(f"{what}: {count} x {text}")
    print("seen:", ", ".join(f"{count} {name}" for name, count in sorted(tally.events.items())))
    print("axes (with preemptions):", ", ".join(f"{n} {count} ({tally.storms[n]})" for n, count in tally.axes.items()))
    print(tally.verdict)
    return 1 if tally.differing else 0


if __name__ == "__main__":
    sys.exit(main())
