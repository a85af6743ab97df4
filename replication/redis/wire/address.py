"""Addresses of listeners: ``redis://host:port``. `space`: whose rights count; `channels`: those
that there are, see `logweir.replication.service.rights`; `resend`: seconds, see
`redis.serve.missed`."""

from __future__ import annotations

from typing import Final

from logweir.replication.urls import Scheme, schemes_of

SCHEMES: Final = schemes_of(
    Scheme("redis", 6379, follows=False, listen_options=frozenset(("channels", "resend", "space")))
)
