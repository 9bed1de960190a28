"""The group of commands, and how each of them ends."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from .._errors import TensorTapError
from . import _diff, _get, _head, _info, _ls, _meta, _pull
from ._exits import CODES, DEFECT, USAGE, code_of
from ._output import shown

__all__ = ["tensortap"]

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code}  {meaning}" for code, meaning in CODES.items())


class _Group(click.Group):
    """Commands that say in one line of standard error what went wrong, and exit with a code that tells it."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _told():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _told():
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result


@click.group(
    cls=_Group, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(package_name="tensortap", prog_name="tensortap")
def tensortap() -> None:
    """Weights of GGUF models that a tensortap service has.

    URL is where it is, like http://host:8000; it may be left out where TENSORTAP_URL has it. Quote globs.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name may have characters that the terminal has not
            stream.reconfigure(errors="backslashreplace")


for _command in (_ls.ls, _info.info, _meta.meta, _get.get, _pull.pull, _head.head, _diff.diff):
    tensortap.add_command(_command)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # who reads our output has enough of it
        _end_by("SIGPIPE")
    except KeyboardInterrupt:
        _end_by("SIGINT")
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "tensortap"
        _exit(USAGE, f"{error.format_message().rstrip('.')}; see {command} --help")
    except TensorTapError as error:
        _exit(code_of(error), str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        _exit(code_of(error), f"{where}{error.strerror or error}")
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        for line in traceback.format_exc().splitlines():  # it may have texts of the service's
            click.echo(shown(line), err=True)
        _exit(DEFECT, f"a defect of this command: {type(error).__name__}: {error}")


def _exit(code: int, why: str) -> NoReturn:
    click.echo(f"tensortap: {shown(' '.join(why.split()))}", err=True)
    sys.exit(code)


def _end_by(name: str) -> NoReturn:
    """End as by the signal itself, so that a shell, and a loop in it, knows; where there is none, with its code."""
    number = getattr(signal, name, signal.SIGINT)
    if sys.platform != "win32":
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(128 + number)
