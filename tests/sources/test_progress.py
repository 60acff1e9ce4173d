from pathlib import Path

from tests.sources.vllm_log.helpers import start_up, stats
from tracekit.api import ingest


def test_a_large_source_tells_bytes_and_rate_and_the_same_result(tmp_path: Path) -> None:
    lines = [*start_up(), *(stats(f"03-05 10:{n // 60 % 60:02}:{n % 60:02}", running=n % 50) for n in range(6000))]
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    said: list[tuple[str, int, int]] = []
    run = ingest(path, progress=lambda *given: said.append(given))
    what, done, total = said[-1]
    assert done == total == path.stat().st_size
    assert what.startswith("reading server.log")
    assert what.endswith(", bytes")
    assert run.engine_stats.equals(ingest(path).engine_stats)
