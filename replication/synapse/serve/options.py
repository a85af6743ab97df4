"""Settings of a Synapse listener, and how an address says them."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from logweir.errors import ConfigError
from logweir.limits import (
    SYNAPSE_STALL_SECONDS,
)
from logweir.replication.synapse.follow.catchup import read_secret
from logweir.replication.synapse.wire.address import SCHEMES
from logweir.replication.synapse.wire.codec import Dialect
from logweir.replication.urls import Url, option_choice, read_listen_url


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a listener. `server_name`: "" for that of the upstream that is relayed.

    `skip_long_rows`, `keep`: see the module's text; `stall_seconds`: how long a follower may take
    nothing of what it is sent; `relay_up`: pass REMOTE_SERVER_UP on to others;
    `enveloped`: rows of spaces are envelopes (`replication.outgoing.shape`);
    `http`: where D3 followers fetch missed rows, with `secret` if that is not "".
    """

    dialect: Dialect = Dialect.D1
    server_name: str = ""
    skip_long_rows: bool = False
    relay_up: bool = False
    keep: bool = False
    stall_seconds: float = SYNAPSE_STALL_SECONDS
    http: Url | None = None
    secret: str = ""
    enveloped: bool = False


def read_options(url: Url) -> Options:
    """The options of a listener's address. Raises `ConfigError`."""
    wanted = url.option("dialect") or "D1"
    if wanted not in ("D1", "D3"):
        raise ConfigError("dialect", f"{wanted!r} is not served", hint="D1 or D3")
    long_row = url.option("on_long_row") or "error"
    if long_row not in ("error", "skip"):
        raise ConfigError("on_long_row", f"{long_row!r} is not known", hint="error or skip")
    http = None
    if address := url.option("http"):
        if wanted != "D3":
            raise ConfigError("http", "only D3 fetches missed rows", hint="add dialect=D3")
        where = read_listen_url(f"synapse://{address}", SCHEMES, origin="http")
        if where.socket:
            raise ConfigError("http", f"{address!r} is a unix socket", hint="give HOST:PORT")
        port = where.port if urllib.parse.urlsplit(f"//{address}").port is not None else 0
        taken = tuple(one for one in url.options if one[0] == "from")  # as beside it
        http = Url("synapse+http", where.host, port, options=taken)
    return Options(
        Dialect(wanted),
        url.option("server_name"),
        long_row == "skip",
        url.flag("relay_up"),
        url.flag("keep"),
        http=http,
        secret=read_secret(url),
        enveloped=option_choice(url, "value", ("", "envelope")) != "",
    )
