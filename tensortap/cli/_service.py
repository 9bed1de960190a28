"""Where the service is and how it is asked: the words and options that all commands have, and shell completion.

The URL may be left out where TENSORTAP_URL has it: a first word with ``://`` in it is a URL.
The key comes from TENSORTAP_KEY. The service's own settings are TENSORTAP_*, too, and one of them is
TENSORTAP_API_KEYS: a variable of the client that differs from it by one letter would be taken for it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from .._client import Client
from .._errors import NotFound
from .._flow import Ask, Flow
from .._model import RemoteModel
from ._output import shown

__all__ = ["KEY_B", "SETTINGS", "ask", "asks", "client_of", "json_option"]

T = TypeVar("T")

SETTINGS = "tensortap.cli.settings"  # where a context has those of the client
KEY_B = "TENSORTAP_KEY_B"
_URL, _KEY = "TENSORTAP_URL", "TENSORTAP_KEY"
_COMPLETION_SECONDS = 1.0
_HOST = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}(/.*)?", re.ASCII)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for scripts.")


def asks(*names: str, retries: int = 3) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Decorate a command that asks a service: it gets a `Client`, then a text for each of ``names``, then its options.

    A name in brackets may be left out, and is None then.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @click.argument("words", cls=_Words, names=names)
        @click.option(
            "--api-key", envvar=_KEY, show_envvar=True, help="Better in the environment: others can see words."
        )
        @click.option(
            "--connections", type=click.IntRange(1, 64), default=8, show_default=True, help="Requests at a time."
        )
        @click.option(
            "--timeout",
            type=click.FloatRange(0, min_open=True),
            default=30.0,
            show_default=True,
            help="Seconds to wait for a connection, and for the next bytes of an answer.",
        )
        @click.option(
            "--retries",
            type=click.IntRange(0),
            default=retries,
            show_default=True,
            help="How often a request may fail in a row without a byte in between.",
        )
        @functools.wraps(command)
        def asking(
            words: tuple[str, ...], api_key: str | None, connections: int, timeout: float, retries: int, **options: Any
        ) -> T:
            url, given = _parsed(words, names)
            settings = {"max_connections": connections, "timeout": timeout, "retries": retries, "cache_bytes": 0}
            click.get_current_context().meta[SETTINGS] = settings
            with client_of(url, api_key, **settings) as tap:
                try:
                    return command(tap, *given, **options)
                except NotFound as error:
                    if error.slug == "no-such-model" and words and _HOST.fullmatch(words[0]):
                        error.detail = f"{error.detail} Did you mean http://{words[0]}?"
                    raise

        return asking

    return decorate


def client_of(url: str, api_key: str | None, **settings: Any) -> Client:
    """A client; raises click.UsageError for what is no URL, and for a key that no header can hold."""
    try:
        return Client(url, api_key=api_key or None, **settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def ask(model: RemoteModel | Client, path: str) -> Any:
    """The JSON that the service answers at a path; about a model, of the version that was opened."""
    headers = {"If-Match": model.version} if isinstance(model, RemoteModel) else {}

    def flow() -> Flow[Any]:
        answer = yield Ask(path, headers)
        return answer.json()

    return model._run(flow())


class _Words(click.Argument):
    """The words of a command: a URL, unless the environment has it, and names."""

    def __init__(self, declarations: Sequence[str], names: Sequence[str], **settings: Any) -> None:
        self.names = names
        super().__init__(
            declarations, nargs=-1, type=click.UNPROCESSED, metavar=" ".join(("[URL]", *names)), **settings
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What the word may be: asked of the service, and nothing if that takes long or fails."""
        try:
            known = _candidates(self.names, ctx.params["words"] or (), ctx.params.get("api_key"))
        except Exception:
            return []
        return [CompletionItem(name) for name in known if name.startswith(incomplete) and shown(name) == name]


def _parsed(words: Sequence[str], names: Sequence[str]) -> tuple[str, list[str | None]]:
    """The URL, and a word for each name."""
    given: list[str | None] = list(words)
    if words and "://" in words[0]:
        url = words[0]
        del given[0]
    else:
        url = os.environ.get(_URL, "")
        if not url:
            raise click.UsageError(f"say where the service is, like http://host:8000, first or in {_URL}")
    needed = sum(not name.startswith("[") for name in names)
    if len(given) < needed:
        raise click.UsageError(f"{names[len(given)]} is missing")
    if len(given) > len(names):
        raise click.UsageError(f"there is a word too many: {given[len(names)]!r}")
    return url, given + [None] * (len(names) - len(given))


def _candidates(names: Sequence[str], words: Sequence[str], api_key: str | None) -> list[str]:
    """All that the next word may be."""
    url, *given = _joined(words) if words and words[0].startswith("http") else (os.environ.get(_URL, ""), *words)
    kind = names[len(given)].strip("[]")
    with client_of(url, api_key, timeout=_COMPLETION_SECONDS, retries=0) as tap:
        if kind.startswith("MODEL"):
            return tap.models()
        model = tap[given[0]]
        return list(model.metadata) if kind == "KEY" else list(model)


def _joined(words: Sequence[str]) -> list[str]:
    """Words with their URL in one piece again: bash, completing, breaks words at colons."""
    url, *rest = words
    while len(rest) > 1 and rest[0] == ":":
        url, rest = f"{url}:{rest[1]}", rest[2:]
    return [url, *rest]
