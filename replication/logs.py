"""Log lines of the server: see `wal.logs`."""

from __future__ import annotations

from logweir.wal.logs import get_logger

__all__ = ["get_logger"]
