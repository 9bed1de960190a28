"""The application: routes, middleware and error handlers around one service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware

from app.auth import Authenticate, Keys
from app.cors import CrossOrigin
from app.limits import PROBES, RequestRules
from app.logs import log_request
from app.metrics import metrics_router
from app.names import NameSegments
from app.observe import Observe
from app.openapi import DESCRIPTION, describe, operation_id
from app.problems import add_problem_handlers
from app.routes import routes
from app.routes_weights import weights_routes
from app.service import Service
from app.settings import Settings, listed

__all__ = ["create_app"]


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

    app = FastAPI(
        title="tensortap",
        summary="What is inside GGUF files: metadata, tensor lists, and any rows of any tensor.",
        version=version("tensortap"),
        description=DESCRIPTION,
        generate_unique_id_function=operation_id,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    app.include_router(routes(service))
    app.include_router(weights_routes(service))
    metrics = service.metrics
    if metrics is not None:
        app.include_router(metrics_router(metrics))
    describe(app, keys=keys is not None, open_paths=PROBES | {"/metrics"} if settings.metrics_open else PROBES)
    add_problem_handlers(app)
    # The last one added comes first.
    app.add_middleware(Authenticate, keys=keys, metrics_open=settings.metrics_open)
    app.add_middleware(
        RequestRules,
        url_limit=settings.url_limit,
        body_limit=settings.body_limit,
        allowed_hosts=listed(settings.allowed_hosts),
    )
    # The framework's own stands outside of all these: with this one, the answer to a fault of ours is observed, too.
    app.add_middleware(ServerErrorMiddleware, handler=app.exception_handlers[Exception])
    if settings.cors_origins:
        app.add_middleware(CrossOrigin, origins=listed(settings.cors_origins))
    app.add_middleware(
        Observe,
        sinks=[log_request] if metrics is None else [log_request, metrics.request],
        on_stream=None if metrics is None else metrics.stream,
    )
    app.add_middleware(NameSegments)
    return app
