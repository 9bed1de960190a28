"""Logs: a line for each request and for each event, as text or as JSON, which nothing that is logged can break.

All lines go to standard error. In both forms a line of the log begins with its time; characters that do not print
(line ends, terminal escapes, bidirectional controls) are written as backslash escapes.
"""

import json
import logging
import re
import time
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

from app.observe import RequestRecord

__all__ = ["LogFormat", "log_config", "log_request"]

LogFormat = Literal["text", "json"]

_access = logging.getLogger("tensortap.access")

# Longest shown, in characters: escaped at its worst, a request's line still fits the 4096 bytes that a pipe takes as
# one, so lines of several workers do not mix.
_LONGEST = {"path": 400, "model": 80, "tensor": 80, "selection": 80}
_FIELDS = tuple(field.name for field in fields(RequestRecord))
_LONGEST_OF_ALL = 200
_PLAIN = re.compile(r"[a-zA-Z0-9!#$%&'()*+,\-./:;<>?@\[\]^_{|}~]+")  # visible, without = " ` and backslash


def log_request(record: RequestRecord) -> None:
    """Log a finished request as one line of the logger ``tensortap.access``."""
    if _access.isEnabledFor(logging.INFO):
        _access.handle(_AccessRecord(record))


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
                "()": _Lines,
                "stream": "ext://sys.stderr",
                "formatter": "lines",
            }
        },
        "loggers": {"uvicorn": logger, "uvicorn.error": {"filters": ["no_echo"]}, "tensortap": logger},
        "root": {"handlers": ["stderr"], "level": "WARNING"},
    }


class _AccessRecord(logging.LogRecord):
    """The log record of a request.

    All of them are logged in one place by one thread: what else a log record tells is looked up once, not each time,
    which took longer than all that is done here.
    """

    def __init__(self, record: RequestRecord) -> None:
        self.__dict__.update(_SAME_FOR_ALL)
        now = time.time()
        self.created, self.msecs = now, now % 1 * 1000
        self.msg = _Access(record)


_SAME_FOR_ALL = logging.LogRecord(_access.name, logging.INFO, __file__, 0, None, (), None, "log_request").__dict__


class _Access:
    """A request's record as the message of a log record: fields for JSON, and a line of text for everyone else."""

    def __init__(self, record: RequestRecord) -> None:
        self._record = record

    @property
    def fields(self) -> dict[str, Any]:
        """What is known, by name; long texts are cut."""
        fields: dict[str, Any] = {}
        for name in _FIELDS:
            value = getattr(self._record, name)
            if isinstance(value, float):
                fields[name] = round(value, 6)
            elif isinstance(value, str) and len(value) > (longest := _LONGEST.get(name, _LONGEST_OF_ALL)):
                fields[name] = value[: longest - 1] + "…"
            elif value is not None:
                fields[name] = value
        return fields

    def __str__(self) -> str:
        return self._plain() or "request " + " ".join(
            [f"{name}={_bare_or_quoted(value)}" for name, value in self.fields.items()]
        )

    def _plain(self) -> str | None:
        """The line if nothing in it is to be cut, and nothing to be quoted but the selection: in a third of the time.

        Of every answer that is whole this is nearly always so.
        """
        r = self._record
        texts = (r.request_id, r.method, r.path, r.route, r.outcome, r.model, r.tensor)
        joined = "%s%s%s%s%s%s%s" % texts  # noqa: UP031 - None is a text here, as plain as any
        if (
            len(joined) > _LONGEST_OF_ALL
            or "" in texts
            or None in (r.status, r.outcome)
            or not _PLAIN.fullmatch(joined)
        ):
            return None
        line = (
            f"request request_id={r.request_id} method={r.method} path={r.path} route={r.route} status={r.status} "
            f"bytes_sent={r.bytes_sent} outcome={r.outcome} seconds={r.seconds:.6f}"
        )
        for name, value in (("model", r.model), ("tensor", r.tensor), ("selection", r.selection)):
            if value is None:
                continue
            if len(value) > _LONGEST[name]:
                return None
            line += f" {name}={value if name != 'selection' else _bare_or_quoted(value)}"
        return line


def _bare_or_quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}"
    shown = str(value)
    return shown if _PLAIN.fullmatch(shown) else json.dumps(shown)


class _Lines(logging.StreamHandler[Any]):
    """Writes lines to standard error, which is line-buffered: nothing is left for a flush, and its two locks."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


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
        if not (record.exc_info or record.stack_info):
            return line.rstrip()
        return "\n    ".join([line, *map(_escaped, _trace(self, record).split("\n"))]).rstrip()


def _time(record: logging.LogRecord) -> str:
    second, rest = divmod(record.created, 1)
    return f"{_second(int(second))}.{int(rest * 1000):03}Z"


@lru_cache(maxsize=2)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).replace(tzinfo=None).isoformat()


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    trace = formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
    return "\n".join(filter(None, (trace, record.stack_info)))


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in line)
