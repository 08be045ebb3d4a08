"""The command line. A command's module is imported when it runs, so that `ptxgen emit` starts fast."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from ptxgen import __version__
from ptxgen.errors import HungKernelError, PtxgenError

EXIT_NO = 1  # the answer is "no": stale, wrong, findings
EXIT_ERROR = 2  # usage or failure

_COMMANDS = {
    "emit": "Print the PTX of a kernel.",
    "steps": "List the steps that can be built.",
    "generate": "Write the committed PTX from its manifest, or check that it is fresh.",
    "asm": "Assemble a kernel with ptxas and show what it needs.",
    "run": "Run a kernel on matrices and compare with a float64 reference.",
    "verify": "Execute a kernel at small sizes and report every broken rule.",
    "diff": "Say what changed between two kernels.",
    "explain": "Explain a kernel, or a line of it.",
    "report": "Write a page about a kernel: pipeline, memory, barriers, findings, PTX.",
    "best": "Choose the kernel for a problem size, and say why.",
    "bench": "Time a kernel on a GPU beside cuBLAS.",
    "tune": "Search the fastest kernels for problem sizes on a GPU.",
    "launch-template": "Print a launch description to fill in for PTX from elsewhere.",
    "cache": "Show or clear the cubins kept on disk.",
}


class _Commands(click.Group):
    """The group; each command lives in the module of its name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"ptxgen.commands.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ptxgen")
def cli() -> None:
    """GEMM kernels for NVIDIA's TMA and tensor cores as readable PTX.

    Exit codes: 0 fine, 1 the answer is "no", 2 usage or failure.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors become one message on stderr."""
    hung = False
    try:
        code = cli.main(args=arguments, prog_name="ptxgen", standalone_mode=False)
        sys.stdout.flush()
    except PtxgenError as error:
        message = str(error)
        hung = isinstance(error, HungKernelError)
    except click.exceptions.NoArgsIsHelpError as error:
        message = error.format_message()
    except click.ClickException as error:
        message = error.format_message()
        if message.startswith("Got unexpected extra argument") and "=" in message:
            message += "; each choice needs a --set of its own"
        if isinstance(error, click.UsageError) and error.ctx is not None:
            message += f"\nTry '{error.ctx.command_path} --help'."
    except click.Abort:
        message = "interrupted"
    except BrokenPipeError:
        # The reader of stdout (head, less) has gone; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except MemoryError:
        message = "out of memory; take a smaller problem"
    else:
        return code if isinstance(code, int) else 0
    click.echo(f"ptxgen: error: {message}", err=True)
    if hung:
        _abandon()
    return EXIT_ERROR


def _abandon() -> None:
    """End the process without cleaning up, which would wait for a kernel that never ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_ERROR)


def main() -> None:
    """The console script."""
    sys.exit(run())
