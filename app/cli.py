"""The command line: ``serve``, ``check`` and ``settings``."""

import logging
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

import click
import uvicorn
from pydantic import ValidationError

from app.settings import ENV_PREFIX, Settings

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
    os.environ.update(settings.environment())  # worker processes read them from there
    # The server raises the signal again once it has stopped: a stop that was asked for is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(
        "app.server:create_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.grace_seconds,
        server_header=False,
        ws="none",
        log_config=_log_config(),
    )


@main.command()
def settings() -> None:
    """Print every setting: its default, its meaning, and its value now."""
    now = _settings((), "python -m app settings")
    for name, field in Settings.model_fields.items():
        value = getattr(now, name)
        default = field.get_default(call_default_factory=True)
        if name == "cache_bytes" and value is None:
            value = f"unset: {now.cache_budget}"
        click.echo(f"{ENV_PREFIX}{name.upper()}  --{name.replace('_', '-')}")
        click.echo(f"    {field.description}")
        click.echo(f"    default {'unset' if default is None else default}, now {value}")


@main.command()
@click.argument("files", nargs=-1, required=True, type=click.Path())
def check(files: tuple[str, ...]) -> None:
    """Open FILES as the service would, decode every tensor, and print a table; exit 1 on faults."""
    from app.check import check_files  # what serving does not need is not loaded for it

    sys.exit(0 if check_files(files) else 1)


def _settings(flags: Iterable[str], program: str) -> Settings:
    try:
        return Settings(_cli_parse_args=list(flags), _cli_prog_name=program, _cli_kebab_case=True)  # type: ignore[call-arg]
    except ValidationError as error:
        for one in error.errors():
            name = ".".join(str(part) for part in one["loc"])
            click.echo(f"{ENV_PREFIX}{name.upper()} or --{name.replace('_', '-')}: {one['msg']}", err=True)
        sys.exit(2)


class _OneLine(logging.Filter):
    """Drops the server's remark on an answer that was cut short: the service has said why, in its own line."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in record.getMessage()


def _log_config() -> dict[str, Any]:
    config: dict[str, Any] = dict(uvicorn.config.LOGGING_CONFIG)
    config["filters"] = {"one_line": {"()": _OneLine}}
    config["handlers"] = {**config["handlers"]}
    config["handlers"]["default"] = {**config["handlers"]["default"], "filters": ["one_line"]}
    config["loggers"] = {
        **config["loggers"],
        "tensortap": {"handlers": ["default"], "level": "INFO", "propagate": False},
    }
    return config
