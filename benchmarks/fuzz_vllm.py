"""A long-lived process of the live vLLM to compare with (its own environment, made by the oracle's ``install.sh``)."""

import json
import select
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz_workloads import Case, Row

_START_SECONDS = 600
_CASE_SECONDS = 300


class NoVllmError(Exception):
    """There is no live vLLM of this version here."""


@dataclass(frozen=True)
class Answer:
    """What the live vLLM did with a case."""

    rows: list[Row] = field(default_factory=list)
    refused: str | None = None
    crash: str | None = None
    """vLLM raised after the last row."""
    harness: str | None = None
    """The recorder raised, or the process died or hung: nothing to compare."""


class LiveVllm:
    """Runs cases in one worker process and starts it again when it dies."""

    def __init__(self, oracle: Path, version: str) -> None:
        self._python = oracle / f"venv-{version}" / "bin" / "python"
        self._oracle = oracle
        if not self._python.is_file():
            msg = f"no vLLM {version} in {oracle}: make it with {oracle}/install.sh {version}"
            raise NoVllmError(msg)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self.version = self._start()

    def send(self, case: Case) -> None:
        """Hand a case over; the worker runs it while the caller does something else."""
        try:
            self._write({"config": case.config, "workload": case.workload})
        except OSError:
            self._process.kill()

    def receive(self) -> Answer:
        """The answer to the case sent last."""
        answer = self._read(_CASE_SECONDS)
        if answer is None:
            self.close()
            self._start()
            return Answer(harness="the worker died or hung")
        return Answer(**answer)

    def run(self, case: Case) -> Answer:
        """Send and receive."""
        self.send(case)
        return self.receive()

    def close(self) -> None:
        """End the worker."""
        self._process.kill()
        self._process.wait()

    def _start(self) -> str:
        worker = Path(__file__).with_name("fuzz_vllm_worker.py")
        self._process = subprocess.Popen(  # noqa: S603 - the python and the worker are ours
            [self._python, "-W", "ignore", worker, self._oracle],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        hello = self._read(_START_SECONDS)
        if hello is None:
            self.close()
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").splitlines()[-3:]
            raise NoVllmError("vLLM does not import: " + " | ".join(lines))
        return str(hello["version"])

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _read(self, seconds: float) -> dict[str, Any] | None:
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], seconds)[0]:
            return None
        line = stdout.readline()
        return dict(json.loads(line)) if line.endswith(b"\n") else None
