"""Addresses of Tarantool servers.

`anonymous=1` of an upstream: without a place in its `_cluster`.
"""

from __future__ import annotations

from typing import Final

from logweir.replication.urls import Scheme, schemes_of

SCHEMES: Final = schemes_of(Scheme("tarantool", 3301, options=frozenset(("anonymous",))))
