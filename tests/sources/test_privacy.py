"""No text of a prompt, and no token ids, in anything that is written or printed."""

import re
from pathlib import Path

import pytest

from tests.sources.reading import SHARED
from tracekit.cli.main import main
from tracekit.run import load
from tracekit.schema.tables import TABLES
from tracekit.sources.vllm_log.lifecycle import parse_received
from tracekit.sources.vllm_log.records import split_records

RUN = SHARED / "engine-runs" / "0.8.5.post1" / "default"


def prompts() -> list[tuple[str, str]]:
    """Every prompt of the log: a part of its text, and of its token ids."""
    found = []
    for line in (RUN / "server.log").read_text(encoding="utf-8", errors="replace").split("\n"):
        for record in split_records(line):
            received = parse_received(record.message)
            if received is not None and received.prompt_span is not None and received.token_ids:
                text = record.message[slice(*received.prompt_span)]
                plain = max(re.split(r"[\\\ufffd]", text), key=len)
                found.append((max(text[5:25], plain, key=len), ", ".join(received.token_ids.split(", ")[4:10])))
    return found


def command(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


@pytest.mark.skipif(not RUN.is_dir(), reason="needs ../shared")
def test_no_output_holds_a_prompt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    needles = prompts()
    assert len(needles) > 200
    run, shared = tmp_path / "run", tmp_path / "shared"
    command("ingest", str(RUN / "server.log"), str(RUN / "metrics"), str(RUN / "client.jsonl"), "-o", str(run), "-v",
            "--column", "arrival=t_send", "--column", "request_id=id", "--column", "num_prompt_tokens=n_prompt_ids",
            "--column", "num_output_tokens=max_tokens")  # fmt: skip
    command("show", str(run), "-v")
    command("show", str(run), "--json")
    command("export", str(run), "--anonymous", str(shared))
    printed = capfd.readouterr()
    outputs = [printed.out, printed.err]
    for folder in (run, shared):
        loaded = load(folder)
        outputs.extend(loaded.table(table.name).write_ndjson() for table in TABLES)
        outputs.append((folder / "run.json").read_text(encoding="utf-8"))
        outputs.extend(path.read_bytes().decode("latin-1") for path in folder.iterdir())
    assert sum(map(len, outputs)) > 100_000
    for text, ids in needles:
        for output in outputs:
            assert text not in output
            assert ids not in output
            assert ids.replace(" ", "") not in output
