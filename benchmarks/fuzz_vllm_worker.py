"""The live vLLM's side of the fuzz comparison: runs in the oracle's environment, one process for many workloads.

``PYTHON fuzz_vllm_worker.py ORACLE``: reads one JSON object a line (``config``, ``workload``) from stdin and answers
with one line: ``rows`` (a step each, as the recorder writes them) and at most one of ``refused`` (vLLM does not take
this config), ``crash`` (vLLM raised while it ran; the rows before stand) and ``harness`` (the recorder raised).
"""

import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


class _Rows:
    """Collects what the recorder writes to its file."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def write(self, text: str) -> None:
        self.rows.append(json.loads(text))


def _driver(recorder: ModuleType, case: dict[str, Any]) -> Any:  # noqa: ANN401 - a class of the oracle's
    """The recorder's driver, put right in one place.

    It counts an output that vLLM drops (a reset of the cache throws running requests out, asynchronous) as one that the
    device knows, and then lets the resumed request miss a token, which no device does.
    """

    class Driver(recorder.Driver):  # type: ignore[name-defined, misc]
        def process(self, out: Any) -> Any:  # noqa: ANN401
            requests = self.s.requests
            before = {name: requests[name].num_tokens for name in out.num_scheduled_tokens if name in requests}
            answer = super().process(out)
            for name, tokens in zip(out.num_scheduled_tokens, self.toks, strict=True):
                if len(tokens) and name in requests and requests[name].num_tokens == before[name]:
                    self.reqstate[name]["total"] -= 1
            return answer

    return Driver(case["config"], case["workload"])


def _where(error: BaseException, oracle: Path) -> tuple[str, bool]:
    """The error in one line, and whether vLLM raised it (or torch and the like below it)."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.name})", (
        Path(frame.filename).parent != oracle
    )


def _answer(recorder: ModuleType, case: dict[str, Any], oracle: Path) -> dict[str, Any]:
    try:
        driver = _driver(recorder, case)
    except Exception as error:  # noqa: BLE001 - whatever vLLM refuses a config with
        return {"rows": [], "refused": _where(error, oracle)[0]}
    sink = _Rows()
    try:
        driver.run(sink, case["config"]["max_steps"])
    except Exception as error:  # noqa: BLE001 - whatever vLLM dies of
        where, in_vllm = _where(error, oracle)
        return {"rows": sink.rows, "crash" if in_vllm else "harness": where}
    return {"rows": sink.rows}


def main() -> None:
    oracle = Path(sys.argv[1]).resolve()
    answers = os.fdopen(os.dup(1), "w")  # vLLM may print; the answers keep stdout for themselves
    os.dup2(2, 1)
    sys.path.insert(0, str(oracle))
    import run_scheduler

    print(json.dumps({"version": run_scheduler.VERSION}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(run_scheduler, json.loads(line), oracle)), file=answers, flush=True)


if __name__ == "__main__":
    main()
