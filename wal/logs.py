"""Log lines: a constant event name and fields, through Python's own `logging`.

`event='link.closed' peer='127.0.0.1:4711' reason='…'`. Who embeds logweir configures `logging` as
usual; loggers are below `logweir`.
"""

from __future__ import annotations

import logging
from typing import Any

import structlog

__all__ = ["get_logger"]


def get_logger(name: str) -> Any:
    """The logger of that name: `.info("event", field=value)`, `.warning`, `.error`."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
    )
