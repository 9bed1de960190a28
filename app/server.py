"""The application: routes, middleware and error handlers around one service."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from app.limits import RequestRules
from app.names import NameSegments
from app.problems import add_problem_handlers
from app.routes import routes
from app.routes_weights import weights_routes
from app.service import Service
from app.settings import Settings

__all__ = ["create_app"]


def create_app(settings: Settings | None = None) -> FastAPI:
    """The ASGI application; without settings, as the environment has them. Its service is at ``app.state.service``."""
    service = Service(settings or Settings())

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
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    app.include_router(routes(service))
    app.include_router(weights_routes(service))
    add_problem_handlers(app)
    # The last one added comes first: rules see the request before its names are rewritten.
    app.add_middleware(NameSegments)
    app.add_middleware(RequestRules, url_limit=service.settings.url_limit)
    return app
