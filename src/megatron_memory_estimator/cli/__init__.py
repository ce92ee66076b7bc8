"""The command `megatron-memory`: one file per verb. Everything printed is also available with --json."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import NoReturn

from ..wording import LONGEST_MESSAGE, plain

OBJECTS = 100_000
"""Objects made between two collections of garbage: what a command makes lives until it ends, and none of it is in cycles."""


def main(argv: list[str] | None = None) -> None:
    """Run the command; a refused input prints one sentence on standard error and exits with 2."""
    gc.set_threshold(OBJECTS)
    if sys.stderr is None:  # closed by who started us
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        _main(argv)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    if argv is None:
        leave()


def leave() -> None:
    """End the process when all is written, without taking apart what it made: that takes longer than an estimate.

    With other threads, or what others asked to have done at the end, the interpreter ends as ever.
    """
    threading = sys.modules.get("threading")
    if (threading is None or threading.active_count() == 1) and not atexit._ncallbacks():
        sys.stderr.flush()
        os._exit(0)


def _main(argv: list[str] | None) -> None:
    import click

    from ..errors import EstimatorError
    from .group import ReaderGone, command

    if sys.stdout is None:
        fail("standard output is closed")
    try:
        command.main(args=argv, prog_name="megatron-memory", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.exceptions.Abort:
        fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        sys.exit(2)
    except click.NoSuchOption as error:
        from .group import elsewhere, explanation, spelled, unknown

        option, ctx = error.option_name, error.ctx
        said = explanation(option) or (elsewhere(option, ctx) if ctx else "")
        fail(said or unknown(option, spelled(ctx.command, ctx) if ctx else ()))
    except click.MissingParameter as error:
        from .group import missing_model

        model = error.param is not None and error.param.name == "model" and error.ctx is not None
        named = model and any(word.split("=")[0] == "--model" for word in (sys.argv[1:] if argv is None else argv))
        fail(missing_model(error.ctx.info_name or "") if named and error.ctx else error.format_message())
    except click.ClickException as error:
        fail(error.format_message())
    except EstimatorError as error:
        fail(str(error), most=error.longest)
    except OSError as error:
        output_failed(error)
    except RecursionError:
        fail("the input is nested too deeply")
    except ReaderGone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def fail(message: str, code: int = 2, most: int = LONGEST_MESSAGE) -> NoReturn:
    """One sentence on standard error, and the exit code."""
    try:
        print(f"error: {plain(message, most)}", file=sys.stderr, flush=True)
    except OSError:  # nobody can read it
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    sys.exit(code)


def output_failed(error: OSError) -> NoReturn:
    """Standard output cannot be written; a reader that stopped reading is no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(0)
    fail(f"cannot write to standard output: {error.strerror}")
