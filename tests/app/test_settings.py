"""Settings: described, bounded, and the same from variables, flags and arguments."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from app import settings as settings_module
from app.settings import ENV_PREFIX, Settings

# For each setting a text that is not its default, and what it means.
GIVEN: dict[str, tuple[str, Any]] = {
    "root": ("/some/folder", Path("/some/folder")),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("0", 0),
    "workers": ("3", 3),
    "cache_bytes": ("512MiB", 512 << 20),
    "decode_threads": ("17", 17),
    "read_ahead": ("7", 7),
    "open_models": ("5", 5),
    "recheck_seconds": ("0.25", 0.25),
    "outside_symlinks": ("true", True),
    "json_limit": ("1KiB", 1024),
    "answer_limit": ("1GiB", 1 << 30),
    "max_streams": ("3", 3),
    "stream_queue": ("0", 0),
    "queue_seconds": ("0.5", 0.5),
    "url_limit": ("8192", 8192),
    "body_limit": ("1MiB", 1 << 20),
    "cache_control": ("private, max-age=60", "private, max-age=60"),
    "api_keys": ("some-key a/*; other-key", SecretStr("some-key a/*; other-key")),
    "api_keys_file": ("/some/keys", Path("/some/keys")),
    "metrics_open": ("true", True),
    "allowed_hosts": ("example.org, *.example.net,[::1]", "example.org, *.example.net,[::1]"),
    "cors_origins": ("https://example.org,http://localhost:3000", "https://example.org,http://localhost:3000"),
    "max_connections": ("7", 7),
    "request_seconds": ("0.5", 0.5),
    "stall_seconds": ("1.5", 1.5),
    "keep_alive_seconds": ("20", 20),
    "grace_seconds": ("0", 0),
    "log_format": ("json", "json"),
    "metrics": ("false", False),
}
OUT_OF_BOUNDS = [
    ("port", "65536"),
    ("port", "-1"),
    ("workers", "0"),
    ("cache_bytes", "much"),
    ("decode_threads", "0"),
    ("read_ahead", "0"),
    ("read_ahead", "17"),
    ("open_models", "0"),
    ("recheck_seconds", "-1"),
    ("recheck_seconds", "nan"),
    ("url_limit", "10"),
    ("outside_symlinks", "perhaps"),
    ("body_limit", "much"),
    ("allowed_hosts", ""),
    ("allowed_hosts", "example.org:80"),
    ("allowed_hosts", "https://example.org"),
    ("allowed_hosts", "a.*.example.org"),
    ("cors_origins", "null"),
    ("cors_origins", "example.org"),
    ("cors_origins", "https://example.org/"),
    ("cors_origins", "https://example.org https://example.net"),
    ("max_connections", "0"),
    ("request_seconds", "0"),
    ("stall_seconds", "nan"),
    ("keep_alive_seconds", "0"),
    ("grace_seconds", "-1"),
    ("log_format", "xml"),
    ("metrics", "perhaps"),
]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)


def from_flags(*flags: str) -> Settings:
    arguments: dict[str, Any] = {"_cli_parse_args": list(flags)}
    return Settings(**arguments)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def test_every_setting_is_described_and_tried_here() -> None:
    assert set(GIVEN) == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_the_defaults_are_right_for_a_laptop() -> None:
    settings = Settings()
    assert (settings.root, settings.host, settings.port) == (Path("models"), "127.0.0.1", 8000)
    assert settings.outside_symlinks is False


@pytest.mark.parametrize("name", GIVEN)
def test_a_variable_and_a_flag_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, value = GIVEN[name]
    assert getattr(Settings(), name) != value
    by_flag = from_flags(flag(name), text)
    assert from_flags(f"{flag(name)}={text}") == by_flag
    monkeypatch.setenv(ENV_PREFIX + name.upper(), text)
    assert Settings() == by_flag
    assert getattr(by_flag, name) == value


def test_a_flag_wins_over_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORTAP_PORT", "1")
    assert from_flags("--port", "2").port == 2
    assert from_flags().port == 1


@pytest.mark.parametrize(("name", "text"), OUT_OF_BOUNDS)
def test_what_is_out_of_bounds_is_refused(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_PREFIX + name.upper(), text)
    with pytest.raises(ValidationError) as refused:
        Settings()
    assert [error["loc"] for error in refused.value.errors()] == [(name,)]


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1


def in_environment(variables: dict[str, str]) -> Settings:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return Settings()


def test_the_environment_gives_all_of_it_back() -> None:
    settings = from_flags(*(part for name, (text, _) in GIVEN.items() for part in (flag(name), text)))
    variables = settings.environment()
    assert set(variables) == {ENV_PREFIX + name.upper() for name in GIVEN}
    assert in_environment(variables) == settings


@given(
    st.builds(
        lambda **values: {name: value for name, value in values.items() if value is not None},
        root=st.binary(min_size=1, max_size=9).filter(lambda path: b"\0" not in path).map(os.fsdecode).map(Path)
        | st.none(),
        cache_bytes=st.integers(0, 1 << 60) | st.none(),
        recheck_seconds=st.floats(0, 3600) | st.none(),
        outside_symlinks=st.booleans() | st.none(),
        json_limit=st.integers(0, 1 << 60) | st.none(),
        port=st.integers(0, 65535) | st.none(),
    )
)
def test_any_settings_come_back_from_the_environment(values: dict[str, Any]) -> None:
    """Worker processes are given them so; a path may have any bytes."""
    settings = Settings(**values)
    assert in_environment(settings.environment()) == settings


def test_an_unset_cache_is_the_default_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "default_cache_bytes", lambda workers: 1000 // workers)
    assert Settings().cache_budget == 1000
    assert Settings(workers=2).cache_budget == 500
    assert from_flags("--cache-bytes", "3KiB", "--workers", "2").cache_budget == 3072
    assert from_flags("--cache-bytes", "0").cache_budget == 0
    assert "TENSORTAP_CACHE_BYTES" not in Settings().environment()
