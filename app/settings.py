"""Every setting of the service, as one model: environment variables ``TENSORTAP_*`` and flags of ``serve``."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ByteSize, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.machine import default_cache_bytes, default_decode_threads

__all__ = ["ENV_PREFIX", "Settings", "listed"]

ENV_PREFIX = "TENSORTAP_"


def listed(text: str) -> tuple[str, ...]:
    """The members of a list whose members are separated by commas."""
    return tuple(member for part in text.split(",") if (member := part.strip()))


def _list_of(pattern: str, what: str) -> AfterValidator:
    def check(text: str) -> str:
        for member in listed(text):
            if not re.fullmatch(pattern, member):
                raise ValueError(f"{member!r} is no {what}")
        return text

    return AfterValidator(check)


class Settings(BaseSettings):
    """What an operator can choose. The defaults suit a laptop and are safe in a container."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, cli_kebab_case=True)

    root: Annotated[Path, Field(description="The volume: the folder whose GGUF files are served.")] = Path("models")
    host: Annotated[str, Field(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on; 0 takes a free one.")] = 8000
    workers: Annotated[int, Field(ge=1, le=64, description="Server processes; each has a window cache of its own.")] = 1
    cache_bytes: Annotated[
        ByteSize | None,
        Field(
            description="Decoded windows that each worker keeps, in bytes or like 512MiB. Unset: a quarter of "
            "the memory that the container may use, divided by the workers, at least 64 MiB."
        ),
    ] = None
    decode_threads: Annotated[
        int,
        Field(
            ge=1,
            le=256,
            description="Threads of each worker that read, decode and send windows. Default: the cores that the "
            "container may use, rounded up, and 1.",
        ),
    ] = default_decode_threads()
    read_ahead: Annotated[
        int, Field(ge=1, le=16, description="Windows that a stream has decoded ahead of its socket.")
    ] = 3
    open_models: Annotated[
        int, Field(ge=1, le=4096, description="Models kept open between requests, the latest used.")
    ] = 32
    recheck_seconds: Annotated[
        float,
        Field(ge=0, le=3600, description="How long a look at the volume holds before files are checked again."),
    ] = 1.0
    outside_symlinks: Annotated[bool, Field(description="Also follow symbolic links that lead out of the volume.")] = (
        False
    )
    json_limit: Annotated[ByteSize, Field(description="Most decoded bytes that format=json answers.")] = ByteSize(
        64 << 20
    )
    answer_limit: Annotated[
        ByteSize | None,
        Field(description="Most bytes of one answer of weights in the other formats. Unset: any number."),
    ] = None
    max_streams: Annotated[
        int, Field(ge=1, description="Answers of more than a window that each worker sends at a time.")
    ] = 64
    stream_queue: Annotated[int, Field(ge=0, description="How many more such answers may wait for their turn.")] = 32
    queue_seconds: Annotated[
        float, Field(ge=0, le=3600, description="How long each of those waits before it is refused with 503.")
    ] = 5.0
    # The HTTP parser itself refuses 64 KiB: the limit lies below, so that it is ours to explain.
    url_limit: Annotated[ByteSize, Field(ge=1024, le=60_000, description="Longest path and query of a request.")] = (
        ByteSize(32 << 10)
    )
    body_limit: Annotated[ByteSize, Field(description="Largest body of a request.")] = ByteSize(16 << 20)
    cache_control: Annotated[
        str, Field(description="The Cache-Control header of weights; with API keys on, public becomes private.")
    ] = "public, max-age=0, must-revalidate"
    api_keys: Annotated[
        SecretStr | None,
        Field(
            description="API keys, of which requests must give one: separated by semicolons, each followed by globs of "
            "the models it may read. Unset, without a file of keys: no key is needed."
        ),
    ] = None
    api_keys_file: Annotated[
        Path | None, Field(description="A file of API keys, one a line; a change of it holds within a second.")
    ] = None
    metrics_open: Annotated[bool, Field(description="With API keys on: /metrics needs none.")] = False
    allowed_hosts: Annotated[
        str,
        Field(
            min_length=1,
            description="Host names, separated by commas, that requests may ask for, like *.example.org; * is any.",
        ),
        _list_of(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]", "host name without a port"),
    ] = "*"
    cors_origins: Annotated[
        str,
        Field(description="Origins, separated by commas, whose web pages may ask, like https://example.org; * is any."),
        _list_of(r"\*|[a-z][a-z0-9+.-]*://[^/\s?#,]+", "origin such as https://example.org"),
    ] = ""
    max_connections: Annotated[
        int,
        Field(ge=1, le=1_000_000, description="Connections of each worker; requests of others are answered with 503."),
    ] = 1000
    request_seconds: Annotated[
        float, Field(gt=0, le=3600, description="How long a request may take to arrive, its body included.")
    ] = 30.0
    stall_seconds: Annotated[
        float, Field(gt=0, le=3600, description="How long a client may take no byte of its answer.")
    ] = 60.0
    keep_alive_seconds: Annotated[
        int,
        Field(ge=1, le=3600, description="How long an idle connection stays open; longer than a proxy's."),
    ] = 75
    grace_seconds: Annotated[
        int, Field(ge=0, le=3600, description="How long running answers may go on after SIGTERM.")
    ] = 8
    log_format: Annotated[
        Literal["text", "json"], Field(description="Form of the log's lines on standard error: text or json.")
    ] = "text"
    metrics: Annotated[bool, Field(description="Serve metrics for Prometheus at /metrics.")] = True

    @property
    def cache_budget(self) -> int:
        """Bytes of decoded windows that this worker keeps: ``cache_bytes``, or the default for this machine."""
        return default_cache_bytes(self.workers) if self.cache_bytes is None else int(self.cache_bytes)

    def environment(self) -> dict[str, str]:
        """These settings as environment variables, to hand them to worker processes; unset ones are left out."""
        values = self.model_dump(mode="json", exclude_none=True)
        if self.api_keys is not None:
            values["api_keys"] = self.api_keys.get_secret_value()
        return {f"{ENV_PREFIX}{name}".upper(): str(value) for name, value in values.items()}
