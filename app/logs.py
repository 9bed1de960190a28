"""Logs: a line for each request and for each event, as text or as JSON, which nothing that is logged can break.

All lines go to standard error. In both forms a line of the log begins with its time; characters that do not print
(line ends, terminal escapes, bidirectional controls) are written as backslash escapes.
"""

import json
import logging
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Literal

from app.observe import RequestRecord

__all__ = ["LogFormat", "log_config", "log_request"]

LogFormat = Literal["text", "json"]

_access = logging.getLogger("tensortap.access")

# Longest shown, in characters: escaped at its worst, a request's line still fits the 4096 bytes that a pipe takes as
# one, so lines of several workers do not mix.
_LONGEST = {"path": 400, "model": 80, "tensor": 80, "selection": 80}
_FIELDS = tuple(field.name for field in fields(RequestRecord))
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'()*+,-./:;<>?@[]^_{|}~")


def log_request(record: RequestRecord) -> None:
    """Log a finished request as one line of the logger ``tensortap.access``."""
    if _access.isEnabledFor(logging.INFO):
        _access.info(_Access(record))


def log_config(log_format: LogFormat) -> dict[str, Any]:
    """The logging configuration (as of `logging.config.dictConfig`) of the server and the service."""
    logger = {"handlers": ["stderr"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"no_echo": {"()": _NoEcho}},
        "formatters": {"lines": {"()": _JsonLines if log_format == "json" else _TextLines}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": "lines",
                "filters": ["no_echo"],
            }
        },
        "loggers": {"uvicorn": logger, "tensortap": logger},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
    }


class _Access:
    """A request's record as the message of a log record: fields for JSON, and a line of text for everyone else."""

    def __init__(self, record: RequestRecord) -> None:
        self.fields: dict[str, Any] = {}
        for name in _FIELDS:
            value = getattr(record, name)
            if value is None:
                continue
            if isinstance(value, float):
                value = round(value, 6)
            elif isinstance(value, str) and len(value) > (longest := _LONGEST.get(name, 200)):
                value = value[: longest - 1] + "…"
            self.fields[name] = value

    def __str__(self) -> str:
        return "request " + " ".join(f"{name}={_bare_or_quoted(value)}" for name, value in self.fields.items())


def _bare_or_quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"
    shown = str(value)
    return shown if shown and _PLAIN.issuperset(shown) else json.dumps(shown)


class _NoEcho(logging.Filter):
    """Drops the server's remark on an answer that was cut short: the service has said why, in its own line."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "without completing response" not in record.getMessage()


class _JsonLines(logging.Formatter):
    """Each log record as one JSON object, in ASCII: that escapes whatever does not print, and lone surrogates, too."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname, "logger": record.name}
        if isinstance(record.msg, _Access):
            line |= {"message": "request", **record.msg.fields}
        else:
            line["message"] = record.getMessage()
        if trace := _trace(self, record):
            line["exception"] = trace
        return json.dumps(line, separators=(",", ":"))


class _TextLines(logging.Formatter):
    """Each log record as one line; the lines of a traceback follow it, indented, so that none can pass for another."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name}: {_escaped(record.getMessage())}"
        return "\n    ".join([line, *map(_escaped, _trace(self, record).split("\n"))]).rstrip()


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    trace = formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
    return "\n".join(filter(None, (trace, record.stack_info)))


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)
