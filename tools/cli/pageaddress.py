"""Addresses at which browsers and Prometheus ask a server: the options `--metrics` and `--web`."""

from __future__ import annotations

from urllib.parse import parse_qsl

from logweir.errors import ConfigError
from logweir.replication.addresses import FROM
from logweir.replication.urls import Url

_SOCKET = "unix/:"


def page_address(scheme: str, text: str, origin: str) -> Url | None:
    """HOST:PORT or unix/:FILE with options as an address; None for "". `scheme`: its name, which is
    also that of the option; `origin`: who says so. Raises `ConfigError`."""
    if not text:
        return None
    where, _, query = text.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    named = dict(options)
    file = where.removeprefix(_SOCKET) if where.startswith(_SOCKET + "/") else ""
    host, _, port = where.rpartition(":")
    known = {"mode"} if file else {FROM, "tls"}
    is_known = named.keys() <= known and named.get("tls", "0") == "0"
    is_place = bool(file) or (port.isdigit() and int(port) <= 65535)
    if not is_place or not is_known or (query and query.count("=") != len(named)):
        raise ConfigError(
            scheme,
            f"{text!r} is not HOST:PORT",
            origin=origin,
            hint="write HOST:PORT, and behind it ?from=NETWORKS if only these may connect, "
            "?tls=0 if it is to go unencrypted although there is a certificate; or unix/:/FILE",
        )
    if file:
        return Url(scheme, "", 0, options=tuple(options), socket=file)
    return Url(scheme, host.strip("[]") or "127.0.0.1", int(port), options=tuple(options))
