"""Fetching missed rows over HTTP, as dialects D2 and later want it.

``GET /_synapse/replication/get_repl_stream_updates/<stream>/<random>?from_token=…&upto_token=…`` on
the writer's `replication` listener, with ``Authorization: Bearer <secret>`` where the server has a
secret. Answer: ``{"updates": [[token, row], …], "upto_token": …, "limited": …}``, the range
exclusive below and inclusive above; `limited`: ask again from `upto_token`. The random part is new
for every request, since answers are kept under it for half an hour. ``&instance_name=<writer>`` is
added for a logweir, which answers for all writers; a homeserver ignores it.

A connection that fails is tried again after 1, 2, 4, 8, 16 and 32 s, one that times out after 1 s.
4xx means that this process does not give that stream; 401 and 403 that the secret is wrong.
Source: Synapse 1.21.2, 1.66.0 and 1.163.2, observed; the waits read there.
"""

from __future__ import annotations

import asyncio
import http.client
import secrets
import ssl
import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logweir.errors import ConfigError, DecodeError, LimitExceeded, SourceStopped, Unreachable
from logweir.limits import CONNECT_SECONDS, SYNAPSE_HTTP_BYTES
from logweir.replication.synapse.codec import encode_value, read_json
from logweir.replication.synapse.cursors import Fetch
from logweir.replication.urls import Url

__all__ = ["Page", "Refused", "Sources", "Updates", "read_secret"]

_WAITS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_ANSWER_SECONDS: Final = 60.0
_MASTER: Final = "master"


@dataclass(frozen=True, slots=True)
class Page:
    """One answer. `rows`: (token, MsgPack)."""

    rows: list[tuple[int, bytes]]
    upto: int
    limited: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The server does not give that stream."""

    reason: str


def read_secret(url: Url) -> str:
    """The secret in the file that the option `auth_file` names; "" without one."""
    auth_file = url.option("auth_file")
    if not auth_file:
        return ""
    try:
        return Path(auth_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError("auth_file", f"{auth_file}: {error.strerror}") from error


class Updates:
    """The address of one `replication` listener. `address`: `[http[s]://]host:port`."""

    def __init__(
        self,
        address: str,
        *,
        secret: str = "",
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        text = address if "://" in address else f"http://{address}"
        parts = urllib.parse.urlsplit(text)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("http", f"{address!r} is no address", hint="write http=host:port")
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname
        self._port = parts.port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._secret = secret
        self._pause = pause

    async def fetch(
        self, stream: str, writer: str, after: int, upto: int, alive: Callable[[], None]
    ) -> Page | Refused:
        """One page. `alive`: called before each attempt. Raises `Unreachable`, `SourceStopped`."""
        problem = ""
        for wait in (*_WAITS, None):
            alive()
            try:
                status, body = await asyncio.to_thread(self._get, stream, writer, after, upto)
            except TimeoutError:
                problem, wait = "no answer in time", wait and 1.0
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or type(error).__name__
            else:
                if status == 200:
                    return _read(body)
                text = body[:200].decode(errors="replace")
                if status in (401, 403):
                    raise SourceStopped(
                        f"{self._url} refuses our secret: {status} {text}",
                        hint="put worker_replication_secret into the file of auth_file=…",
                    )
                if 400 <= status < 500:
                    return Refused(f"the upstream answered {status}: {text}")
                problem = f"it answered {status}: {text}"
            if wait is not None:
                await self._pause(wait)
        raise Unreachable(self._url, f"rows of {stream} cannot be fetched: {problem}")

    def _get(self, stream: str, writer: str, after: int, upto: int) -> tuple[int, bytes]:
        name = urllib.parse.quote(stream, safe="")
        path = (
            f"/_synapse/replication/get_repl_stream_updates/{name}/{secrets.token_hex(8)}"
            f"?from_token={after}&upto_token={upto}&instance_name={urllib.parse.quote(writer)}"
        )
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        connection = (
            http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
            if self._tls is None
            else http.client.HTTPSConnection(
                self._host, self._port, timeout=CONNECT_SECONDS, context=self._tls
            )
        )
        try:
            connection.connect()
            connection.sock.settimeout(_ANSWER_SECONDS)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(SYNAPSE_HTTP_BYTES + 1)
            if len(body) > SYNAPSE_HTTP_BYTES:
                raise LimitExceeded("SYNAPSE_HTTP_BYTES", SYNAPSE_HTTP_BYTES, len(body))
            return answer.status, body
        finally:
            connection.close()


def _read(body: bytes) -> Page:
    """The body of an answer. Raises `DecodeError`."""
    try:
        value = read_json(body.decode())
        rows = [(token, encode_value(row)) for token, row in value["updates"]]
        upto, limited = value["upto_token"], bool(value["limited"])
    except (UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"the answer with missed rows cannot be read: {error!r:.200}") from error
    numbers = [upto, *(token for token, _ in rows)]
    if not all(type(one) is int and -(2**63) <= one < 2**63 for one in numbers):
        raise DecodeError("the answer with missed rows holds a token that is no integer")
    return Page(rows, upto, limited)


class Sources:
    """The addresses of one upstream where missed rows are fetched. `url`: with its options."""

    def __init__(self, url: Url) -> None:
        secret = read_secret(url)
        self._url = str(url)
        self._updates = {
            key.partition(".")[2] or _MASTER: Updates(address, secret=secret)
            for key, address in url.options
            if key == "http" or key.startswith("http.")
        }

    async def fetch(self, wanted: Fetch, alive: Callable[[], None]) -> Page | Refused:
        """What was missed, or why it cannot be had. Raises `Unreachable`, `SourceStopped`."""
        updates = self._updates.get(wanted.instance) or self._updates.get(_MASTER)
        if updates is None:
            return Refused("no address for missed rows is configured (http=…)")
        try:
            return await updates.fetch(
                wanted.stream, wanted.instance, wanted.after, wanted.upto, alive
            )
        except DecodeError as error:
            raise Unreachable(self._url, f"{wanted.stream}: {error.reason}") from error
