"""The command `megatron-memory`: one file per verb. Everything printed is also available with --json."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> None:
    """Run the command; a refused input prints one sentence on standard error and exits with 2."""
    import click

    from ..errors import EstimatorError
    from .group import command

    try:
        command.main(args=argv, prog_name="megatron-memory", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        sys.exit(2)
    except click.ClickException as error:
        _fail(error.format_message())
    except EstimatorError as error:
        _fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except RecursionError:
        _fail("the input is nested too deeply")


def _fail(message: str, code: int = 2) -> None:
    text = " ".join(message.split())
    print(f"error: {text}", file=sys.stderr)
    sys.exit(code)
