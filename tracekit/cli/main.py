"""The group of commands, and the one place where errors become messages and exit codes."""

import os
import sys
from collections.abc import Sequence

import click

from tracekit import __version__
from tracekit.cli.output import say
from tracekit.errors import TracekitError

_COMMANDS = {
    "ingest": "any source -> observed run",
    "show": "what is in a run, and what it can and cannot answer",
    "replay": "recorded arrivals through vLLM's scheduler -> simulated run",
    "compare": "two runs side by side",
    "fit": "calibrate the step time on observed runs",
    "sql": "DuckDB SQL over the tables of runs",
    "explain": "one request's story, one step's decision",
    "postmortem": "why it happened and what would have helped",
    "report": "one self-contained HTML page: charts, findings, remedies",
    "capacity": "KV cache size, blocks, maximum concurrency",
    "export": "a run in a form for others: anonymous, to share",
    "conform": "recordings of real vLLM against the model",
}


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for, so that --help answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        command = import_module(f"tracekit.cli.{cmd_name}_command").command
        assert isinstance(command, click.Command)  # noqa: S101 - every module defines one
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tracekit")
def cli() -> None:
    """What did the vLLM scheduler do to my requests, why, and what would have helped?

    \b
    tracekit ingest server.log metrics/ client.jsonl --column ... -o incident
    tracekit replay incident -o simulated
    tracekit sql incident "SELECT count(*) FROM requests"
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit code 0: done, 1: the answer is no, 2: bad use or bad input, 130: interrupted."""
    try:
        code = cli.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except TracekitError as error:
        say(f"error: {error}")
        code = 2
    except click.exceptions.Abort:
        say("interrupted: nothing was written")
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except KeyboardInterrupt:
        say("interrupted: nothing was written")
        code = 130
    except BrokenPipeError:
        # The reader of our output has gone (``| head``): that is no error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.filename is None:
            raise
        say(f"error: {error.filename}: {error.strerror or error}")
        code = 2
    sys.exit(code if isinstance(code, int) else 0)
