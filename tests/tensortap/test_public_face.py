"""What tensortap exports, what importing it loads, and its errors."""

import builtins
import copy
import inspect
import pickle
import subprocess
import sys

import pytest

import tensortap
from tensortap import TensorTapError
from tensortap._errors import error_of

ERRORS = {
    "BadRequest": ValueError,
    "ConnectionFailed": ConnectionError,
    "ModelChanged": Exception,
    "NotFound": KeyError,
    "Overloaded": Exception,
    "SelectionError": IndexError,
    "ServiceError": Exception,
    "TooLarge": Exception,
    "Unauthorized": PermissionError,
    "Unreadable": ValueError,
}
FACE = {
    *ERRORS,
    "AsyncClient",
    "AsyncMetadata",
    "AsyncModel",
    "AsyncTensor",
    "Client",
    "Metadata",
    "Pulled",
    "RemoteModel",
    "RemoteTensor",
    "TensorTapError",
    "safe_open",
}


def test_the_public_face() -> None:
    assert set(tensortap.__all__) == FACE
    shown = {name for name in vars(tensortap) if not name.startswith("_")}
    assert {name for name in shown if not inspect.ismodule(getattr(tensortap, name))} == FACE


@pytest.mark.parametrize("name", sorted(FACE))
def test_all_of_it_has_docstrings(name: str) -> None:
    public = getattr(tensortap, name)
    assert inspect.getdoc(public)
    if inspect.isclass(public):
        for attribute, member in vars(public).items():
            if not attribute.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{attribute}"


def test_both_clients_have_the_same_methods_and_settings() -> None:
    for sync, twin in (
        (tensortap.Client, tensortap.AsyncClient),
        (tensortap.RemoteTensor, tensortap.AsyncTensor),
    ):
        only_sync = {"to_torch", "to_dask"}  # both read when they are called, which a coroutine does not
        assert {name for name in dir(sync) if not name.startswith("_")} - only_sync == {
            name for name in dir(twin) if not name.startswith("_")
        }
    assert inspect.signature(tensortap.Client) == inspect.signature(tensortap.AsyncClient)


def test_importing_it_loads_nothing_that_is_not_needed() -> None:
    # httpx loads click and rich for its own command line, where they are installed: here they are not.
    code = (
        "import sys; sys.modules['click'] = sys.modules['rich'] = None; import tensortap; "
        "print(*sorted({name.partition('.')[0] for name, module in sys.modules.items() if module is not None}))"
    )
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert {"httpx", "numpy", "tenacity", "decoders"} <= loaded
    extras = {"click", "dask", "diskcache", "fsspec", "rich", "torch"}
    service = {"app", "fastapi", "orjson", "pydantic", "starlette", "uvicorn", "werkzeug"}
    assert not (extras | service | {"multiprocessing", "pandas", "pytest", "tests"}) & loaded


def problem(status: int, slug: str) -> dict[str, object]:
    return {"type": f"/problems/{slug}", "title": "t", "status": status, "detail": "What was wrong.", "limit": 5}


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_each_error_is_the_one_that_a_person_expects(name: str) -> None:
    kind = getattr(tensortap, name)
    assert issubclass(kind, TensorTapError)
    assert issubclass(kind, ERRORS[name])
    made = kind("What was wrong.", slug="a-slug", status=400, url="http://h/x", problem={"limit": 5})
    for error in (made, pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert type(error) is kind
        assert str(error) == "a-slug: What was wrong."
        assert (error.detail, error.slug, error.status, error.url) == ("What was wrong.", "a-slug", 400, "http://h/x")
        assert error.problem == {"limit": 5}
    assert str(kind("Alone.")) == "Alone."
    built_in = [base for base in kind.__mro__ if base.__module__ == builtins.__name__]
    assert built_in[0] is (ERRORS[name])


@pytest.mark.parametrize(
    ("status", "slug", "name"),
    [
        (400, "bad-parameter", "BadRequest"),
        (400, "bad-selection", "SelectionError"),
        (400, "selection-out-of-range", "SelectionError"),
        (401, "unauthorized", "Unauthorized"),
        (403, "forbidden", "Unauthorized"),
        (404, "no-such-model", "NotFound"),
        (404, "no-such-tensor", "NotFound"),
        (404, "no-such-key", "NotFound"),
        (406, "not-acceptable", "ServiceError"),
        (409, "ambiguous-tensor", "Unreadable"),
        (412, "model-changed", "ModelChanged"),
        (413, "response-too-large", "TooLarge"),
        (414, "url-too-long", "TooLarge"),
        (422, "unreadable-model", "Unreadable"),
        (422, "incomplete-split", "Unreadable"),
        (422, "tensor-past-end-of-file", "Unreadable"),
        (429, "too-many-requests", "Overloaded"),
        (500, "internal-error", "ServiceError"),
        (503, "overloaded", "Overloaded"),
        (503, "shutting-down", "Overloaded"),
        (503, "volume-error", "ServiceError"),
    ],
)
def test_the_error_of_each_problem(status: int, slug: str, name: str) -> None:
    error = error_of(status, problem(status, slug), "http://h/x")
    assert type(error).__name__ == name
    assert (error.slug, error.status, error.detail, error.problem["limit"]) == (slug, status, "What was wrong.", 5)
