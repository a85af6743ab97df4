"""Addresses of homeservers: ``synapse://host:port``, ``synapse+redis://host:port/server_name``,
``synapse+file://homeserver.yaml``.

The second and third are for upstreams only. What the options mean is in docs/synapse.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from logweir.replication.service.names import local_name
from logweir.replication.urls import Scheme, Url, schemes_of

_KEPT: Final = frozenset(
    ("start", "streams", "retention", "enrich", "enrich_password_file", "enrich_streams")
)
_OPTIONS: Final = _KEPT | {"dialect", "server_name", "http", "http.", "auth_file"}


def _fills(url: Url) -> Iterator[tuple[str, str, str]]:
    yield "stream", f"synapse_{local_name(url.option('name'), '*')}", ""


SCHEMES: Final = schemes_of(
    Scheme(
        "synapse",
        9092,
        options=_OPTIONS,
        listen_options=frozenset(
            (
                *("dialect", "server_name", "http", "auth_file"),
                *("on_long_row", "relay_up", "keep", "streams", "value"),
            )
        ),
        fills=_fills,
    ),
    Scheme(
        "synapse+redis",
        6379,
        ("server_name",),
        1,
        listens=False,
        options=_OPTIONS | {"dbid"},
        fills=_fills,
    ),
    Scheme(
        "synapse+file",
        0,
        listens=False,
        options=_KEPT | {"http", "http.", "with"},
        is_file=True,
        fills=_fills,
    ),
)
