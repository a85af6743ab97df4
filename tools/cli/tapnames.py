"""`logweir tap names`: the named streams of a server or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import logweir
from logweir.errors import ConfigError, ErrorCode, RequestError
from logweir.replication.memcached.wire.address import SCHEMES
from logweir.replication.urls import Url
from logweir.tools.cli.common import utc_text
from logweir.tools.cli.output import Output
from logweir.tools.cli.peers import peer_url

_PREFIX = "eq_tapq:"
_COLUMNS = ("name", "bucket", "connected", "registered", "unacknowledged", "seen")


def tap_url(text: str) -> Url:
    """The address of a TAP server. Raises `ConfigError`."""
    url = peer_url(text)
    if url.scheme not in SCHEMES:
        raise ConfigError("URL", f"{url.scheme}:// is not TAP", hint="write tap://HOST:PORT/BUCKET")
    return url


def names(out: Output, where: str, drop: str) -> int:
    """List the named streams of `where`, or make it forget the one named `drop`. Raises
    `RequestError` if there is none of that name."""
    data = drop.encode("utf-8", "surrogateescape")
    if "://" in where:
        from logweir.replication.memcached.client import TapClient

        with TapClient(tap_url(where)) as client:
            found = _told(client.statistics("tap"))
            if drop:
                _find(found, drop)
                client.deregister(data)
    else:
        from logweir.replication.memcached.push.names import drop_kept, kept_names

        with logweir.open(Path(where), create=False) as log:
            kept = kept_names(log)
            found = [
                {
                    "name": one.name.decode("utf-8", "backslashreplace"),
                    "bucket": one.bucket,
                    "registered": one.is_registered,
                    "seen": utc_text(one.seen_at),
                }
                for one in kept
            ]
            if drop:
                _find(found, drop)
                for one in kept:
                    if one.name == data:
                        drop_kept(log, one)
    if drop:
        out.message(f"forgotten: {drop}")
    else:
        _show(out, found)
    return 0


def _find(found: list[dict[str, Any]], name: str) -> None:
    known = [one["name"] for one in found]
    if name not in known:
        raise RequestError(
            ErrorCode.ILLEGAL_PARAMS,
            f"there is no stream named {name!r}; known are: {', '.join(known) or 'none'}",
        )


def _told(statistics: dict[str, str]) -> list[dict[str, Any]]:
    """The streams of STAT tap, by name."""
    streams: dict[str, dict[str, str]] = {}
    for key, value in statistics.items():
        if key.startswith(_PREFIX):
            name, _, what = key.removeprefix(_PREFIX).rpartition(":")
            streams.setdefault(name, {})[what] = value
    return [
        {
            "name": name,
            "connected": told.get("connected") == "true",
            **({"registered": told["registered"] == "true"} if "registered" in told else {}),
            "unacknowledged": int(told.get("ack_log_size", 0)),
        }
        for name, told in sorted(streams.items())
        if name and told.get("type", "producer") == "producer"  # a consumer may have none
    ]


def _show(out: Output, found: list[dict[str, Any]]) -> None:
    if out.as_json:
        for one in found:
            out.json(one)
        return
    if not found:
        out.message("no named streams")
        return
    columns = [name for name in _COLUMNS if any(name in one for one in found)]
    words = {True: "yes", False: "no"}
    rows = [
        [words[cell] if isinstance(cell, bool) else cell for cell in map(one.get, columns)]
        for one in found
    ]
    out.table(columns, rows, right=("unacknowledged",))
