"""Where the compiled code is kept."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tracekit.kernel import compiling


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiling.cache_directory.cache_clear()
    yield tmp_path
    compiling.cache_directory.cache_clear()


def test_the_cache_is_the_users_own_and_named_by_the_sources(cache_home: Path) -> None:
    directory = compiling.cache_directory()
    assert directory is not None
    assert directory.parent.parent == cache_home
    assert directory.name == f"kernel-{compiling._sources_hash()}"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert not compiling.is_compiled()


def test_a_cache_that_cannot_be_written_is_none(cache_home: Path) -> None:
    (cache_home / "tracekit").write_text("a file in the way")
    assert compiling.cache_directory() is None
    assert not compiling.is_compiled()


def test_a_later_start_is_quick() -> None:
    """The machine code is there by now (or this test makes it): loading it is no compilation."""
    program = (
        "import time; start = time.process_time()\n"
        "from tests.kernel.random_cases import random_case\n"
        "from tracekit.replay.compiled import replay_compiled\n"
        "case = random_case(1)\n"
        "replay_compiled(case.frame, case.config, case.rules, case.step_time, case.mode)\n"
        "print(time.process_time() - start)\n"
    )
    root = Path(__file__).parents[2]
    taken = []
    for _ in range(2):
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
        taken.append((float(done.stdout), time.monotonic() - start))
    assert taken[-1][0] < 5, "it was compiled again"
