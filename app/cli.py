"""The command line: ``serve``, ``check`` and ``settings``."""

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import click
import uvicorn
from pydantic import ValidationError

from app.auth import Keys, KeysError
from app.logs import log_config
from app.settings import ENV_PREFIX, Settings
from app.threads import NoThreads

__all__ = ["main"]

# Flags of serve are parsed by the settings model itself: click only hands them over.
_PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}


@click.group(name="python -m app", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Serve what is inside GGUF files over HTTP."""


@main.command(context_settings=_PASS_ON, add_help_option=False)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(flags: tuple[str, ...]) -> None:
    """Serve the models below --root; --help lists every flag."""
    settings = _settings(flags, "python -m app serve")
    try:
        Keys.of(settings)
    except KeysError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    os.environ.update(settings.environment())  # worker processes read them from there
    _take_descriptors()
    # The server raises the signal again once it has stopped: a stop that was asked for is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _shared_figures(settings), _said_shortly():
        uvicorn.run(
            "app.server:create_served_app",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=settings.grace_seconds,
            server_header=False,
            ws="none",
            http="app.protocol:PatientProtocol",
            log_config=log_config(settings.log_format),
            access_log=False,
        )


@main.command()
def settings() -> None:
    """Print every setting: its default, its meaning, and its value now."""
    now = _settings((), "python -m app settings")
    for name, field in Settings.model_fields.items():
        value = getattr(now, name)
        default = field.get_default(call_default_factory=True)
        if name == "cache_bytes" and value is None:
            value = f"unset, which is {now.cache_budget}"
        click.echo(f"{ENV_PREFIX}{name.upper()}  --{name.replace('_', '-')}")
        click.echo(f"    {field.description}")
        click.echo(f"    default {'unset' if default is None else default}, now {'unset' if value is None else value}")


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
def check(files: tuple[str, ...]) -> None:
    """Open FILES as the service would, decode every tensor, and print a table; exit 1 on faults."""
    from app.check import check_files  # what serving does not need is not loaded for it

    sys.exit(0 if check_files(files) else 1)


def _settings(flags: Iterable[str], program: str) -> Settings:
    known = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in sorted(os.environ):
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            click.echo(f"warning: {name} is no setting; `python -m app settings` prints them all", err=True)
    try:
        return Settings(_cli_parse_args=list(flags), _cli_prog_name=program, _cli_kebab_case=True)  # type: ignore[call-arg]
    except ValidationError as error:
        for one in error.errors():
            name = ".".join(str(part) for part in one["loc"])
            click.echo(f"{ENV_PREFIX}{name.upper()} or --{name.replace('_', '-')}: {one['msg']}", err=True)
        sys.exit(2)


def _take_descriptors() -> None:
    """Allow this process and its workers as many descriptors as the system lets them.

    The usual limit of 1024 is there for programs of another kind, and less than the connections that there may be by
    default. Beyond it new connections are cut, where the service would rather refuse them with an answer.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system that has no such number: it stays as it is
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def _said_shortly() -> Iterator[None]:
    """Say in one line what keeps the service from starting where that is known, and exit 1."""
    try:
        yield
    except NoThreads as error:
        click.echo(str(error), err=True)
        sys.exit(1)


@contextmanager
def _shared_figures(settings: Settings) -> Iterator[None]:
    """Name the folder in which several workers share their metrics, while they run; prometheus_client looks for it."""
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    if settings.workers == 1 or not settings.metrics:
        yield
        return
    try:
        folder = tempfile.TemporaryDirectory(prefix="tensortap-", ignore_cleanup_errors=True)
    except OSError as error:
        reason = error.strerror or error
        click.echo(f"no folder for the metrics of several workers: {reason}. Set TMPDIR, or --metrics=false.", err=True)
        sys.exit(2)
    with folder as path:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = path
        yield
