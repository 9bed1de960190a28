"""A bare FastAPI application, with the route of weights as one would declare it: it answers constant bytes.

`bare` starts it under uvicorn, with uvicorn's own access log; what it answers comes in two environment variables.
"""

import json
import os
import sys
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Response
from pydantic import BaseModel, ConfigDict

from bench._servers import Running, free_port

__all__ = ["bare", "create_app"]

_HEADERS, _N_BYTES = "BENCH_HEADERS", "BENCH_BYTES"


class _Selection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: str | None = None
    cols: str | None = None
    slice: str | None = None
    format: Literal["raw", "npy", "json", "native"] | None = None
    dtype: Literal["float32", "float16", "bfloat16", "stored"] | None = None


def create_app() -> FastAPI:
    """The application, as the environment says."""
    headers: dict[str, str] = json.loads(os.environ[_HEADERS])
    body = bytes(int(os.environ[_N_BYTES]))
    app = FastAPI()

    @app.get("/v1/models/{model}/-/data/{tensor}")
    async def data(model: str, tensor: str, query: Annotated[_Selection, Query()]) -> Response:  # noqa: ARG001
        return Response(body, headers=headers)

    return app


def bare(headers: dict[str, str], n_bytes: int) -> Running:
    """The application under uvicorn, answering ``n_bytes`` bytes with the given headers."""
    port = free_port()
    arguments = ["--factory", "bench._bare:create_app", f"--port={port}", "--no-server-header"]
    return Running(
        [sys.executable, "-m", "uvicorn", *arguments],
        port,
        {_HEADERS: json.dumps(headers), _N_BYTES: str(n_bytes)},
    )
