import subprocess
import sys

HEAVY = {"polars", "duckdb", "pyarrow", "altair", "numba", "numpy"}


def loaded_after(code: str) -> set[str]:
    printed = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint('LOADED', *sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(printed.stdout.rpartition("LOADED")[2].split())


def test_help_loads_nothing_heavy() -> None:
    loaded = loaded_after("from tracekit.cli.main import cli\ncli.main(['--help'], standalone_mode=False)")
    assert "tracekit.cli.main" in loaded
    assert loaded & HEAVY == set()


def test_help_of_every_command_loads_nothing_heavy() -> None:
    code = (
        "from tracekit.cli.main import cli, _COMMANDS\n"
        "for name in _COMMANDS: cli.main([name, '--help'], standalone_mode=False)"
    )
    assert loaded_after(code) & HEAVY == set()


def test_importing_the_library_loads_nothing_heavy() -> None:
    assert loaded_after("import tracekit\ntracekit.__version__") & HEAVY == set()


def test_the_model_is_standard_library_only() -> None:
    assert (
        loaded_after("import tracekit.model.scheduler, tracekit.config_defaults, tracekit.step_time.parameters")
        & (HEAVY | {"click"})
        == set()
    )


def test_every_public_name_resolves() -> None:
    import tracekit

    for name in tracekit.__all__:
        assert getattr(tracekit, name) is not None
    assert set(tracekit.__all__) <= set(dir(tracekit))
