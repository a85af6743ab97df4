"""The page on which a server shows itself: `serve --web`. Its files are in `files`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logweir.errors import ConfigError

if TYPE_CHECKING:
    from logweir.replication.service.shared import Shared
    from logweir.replication.web.board import Board
    from logweir.replication.web.service import WebService

__all__ = ["web_service"]


def web_service(shared: Shared, board: Board, host: str) -> WebService:
    """See `WebService`. Raises `ConfigError` if what it needs is not installed."""
    try:
        from logweir.replication.web.service import WebService
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("starlette"):
            raise
        raise ConfigError(
            "web",
            "the package `starlette` is not installed",
            origin="--web",
            hint="pip install 'logweir[web]'",
        ) from error
    return WebService(shared, board, host)
