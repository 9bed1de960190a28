"""The application: routes, middleware and error handlers around one service."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from app.auth import Authenticate, Keys
from app.cors import CrossOrigin
from app.gate import RequestGate
from app.limits import PROBES, RequestRules
from app.logs import log_request
from app.metrics import metrics_router
from app.names import NameSegments
from app.observe import Observe
from app.openapi import DESCRIPTION, describe, operation_id
from app.problems import AnswerFaults, add_problem_handlers
from app.routes import routes
from app.routes_weights import weights_routes
from app.routing import Dispatch
from app.service import Service
from app.settings import Settings, listed

__all__ = ["create_app", "create_served_app"]


class _Application(FastAPI):
    """FastAPI behind an ``entry``, through which requests come and which may pass them on to ``framework``.

    The framework's own layers cost 10 us a request, which is a tenth of a small one, and its routing far more.
    """

    entry: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.entry if scope["type"] == "http" else self.framework)(scope, receive, send)

    async def framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)


def create_served_app() -> FastAPI:
    """The application of a process that does nothing but serve it, which is set up so that no request waits for long.

    The garbage collector looks at all objects again and again, and everything waits. What is there once the service has
    started stays, and is left out: 80,000 objects, which took 40 to 90 ms each time; the others take 5 ms.
    """
    app = create_app()
    gc.collect()
    gc.freeze()
    return app


def create_app(settings: Settings | None = None) -> FastAPI:
    """The ASGI application; without settings, as the environment has them. Its service is at ``app.state.service``."""
    settings = settings or Settings()
    keys = Keys.of(settings)
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.look_around()
        tidying = asyncio.create_task(service.tidy())
        try:
            yield
        finally:
            tidying.cancel()
            service.close()

    app = _Application(
        title="tensortap",
        summary="What is inside GGUF files: metadata, tensor lists, and any rows of any tensor.",
        version=version("tensortap"),
        description=DESCRIPTION,
        generate_unique_id_function=operation_id,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    routers = [routes(service), weights_routes(service)]
    for router in routers:
        app.include_router(router)
    metrics = service.metrics
    if metrics is not None:
        app.include_router(metrics_router(metrics, service.work))
    describe(app, keys=keys is not None, open_paths=PROBES | {"/metrics"} if settings.metrics_open else PROBES)
    add_problem_handlers(app)

    # From the innermost outwards.
    entry: ASGIApp = Dispatch(app.framework, routers=routers)
    entry = Authenticate(entry, keys=keys, metrics_open=settings.metrics_open)
    entry = RequestRules(
        entry,
        url_limit=settings.url_limit,
        body_limit=settings.body_limit,
        allowed_hosts=listed(settings.allowed_hosts),
    )
    entry = AnswerFaults(entry)
    if settings.cors_origins:
        entry = CrossOrigin(entry, origins=listed(settings.cors_origins))
    entry = Observe(
        entry,
        sinks=[log_request] if metrics is None else [log_request, metrics.request],
        on_stream=None if metrics is None else metrics.stream,
    )
    app.entry = RequestGate(NameSegments(entry))
    return app
