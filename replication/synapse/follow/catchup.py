"""Fetching missed rows over HTTP, as dialects D2 and later want it.

``GET /_synapse/replication/get_repl_stream_updates/<stream>/<random>?from_token=…&upto_token=…`` on
the writer's `replication` listener, with ``Authorization: Bearer <secret>`` if the server has a
secret. Answer: ``{"updates": [[token, row], …], "upto_token": …, "limited": …}``, the range
exclusive below and inclusive above; `limited`: ask again from `upto_token`. The random part is new
for every request, since answers are kept under it for half an hour. ``&instance_name=<writer>`` is
added for a logweir, which answers for all writers and says so: its answer names the writer. A
homeserver's process ignores it, and answers 200 without rows for those of another writer: so only
the writer's own address counts, and the main process's only if the answer names the writer.

A connection that fails is tried again after 1, 2, 4, 8, 16, 32, 32, … s for as long as it takes:
nobody has answered yet. What is answered wrongly (5xx, not in time, too long, no JSON) is asked for
again after the same times, or after 1 s, and then given up. 4xx means that this process does not
give that stream; 401 and 403 that the secret is wrong. A row that cannot be stored is left out.
Source: Synapse 1.21.2, 1.66.0 and 1.163.2, observed; the waits read there.
"""

from __future__ import annotations

import asyncio
import http.client
import secrets
import socket
import ssl
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Final

from logweir.errors import ConfigError, DecodeError, LimitExceeded, SourceStopped
from logweir.limits import CONNECT_SECONDS, SYNAPSE_HTTP_BYTES
from logweir.replication.synapse.wire.codec import encode_value, read_json
from logweir.replication.synapse.wire.units import Fetch
from logweir.replication.urls import Url

_WAITS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_ANSWER_SECONDS: Final = 60.0
_MASTER: Final = "master"
_UNIX: Final = "unix/:"


@dataclass(frozen=True, slots=True)
class Page:
    """One answer. `rows`: (token, MsgPack); `lost`: (token, reason) of those that cannot be stored;
    `writer`: whose rows they are, if the answer tells it."""

    rows: list[tuple[int, bytes]]
    upto: int
    limited: bool
    lost: list[tuple[int, str]] = field(default_factory=list)
    writer: str = ""


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


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket. `file`: the socket's."""

    def __init__(self, file: str, *, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._file = file

    def connect(self) -> None:
        """See the library. Raises `OSError`."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._file)


class Updates:
    """The address of one `replication` listener. `address`: `[http[s]://]host:port`, or
    `unix/:FILE`. Raises `ConfigError`."""

    def __init__(self, address: str, *, secret: str = "") -> None:
        self._secret = secret
        self._file = address.removeprefix(_UNIX) if address.startswith(_UNIX) else ""
        if self._file:
            self._url = address
            return
        text = address if "://" in address else f"http://{address}"
        try:
            parts = urllib.parse.urlsplit(text)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:  # of the port, or of brackets
            self._host = ""
        if not self._host or parts.scheme not in ("http", "https"):
            raise ConfigError(
                "http",
                f"{address!r} is no address",
                hint="write http=host:port, or http=unix/:FILE",
            )
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None

    async def fetch(self, wanted: Fetch, tell: Callable[[str], None]) -> Page | Refused:
        """One page. `tell`: called before each attempt, with what ended the one before, "" at
        first. Raises `SourceStopped`."""
        answers, problem = 0, ""
        for wait in chain(_WAITS, repeat(_WAITS[-1])):
            tell(problem)
            try:
                found = await asyncio.to_thread(self._get, wanted)
            except TimeoutError:
                problem, wait = "no answer in time", 1.0
            except OSError as error:
                problem = f"{self._url}: {error.strerror or error}"
                await asyncio.sleep(wait)
                continue
            except (http.client.HTTPException, DecodeError, LimitExceeded) as error:
                problem = f"the answer cannot be read: {error or type(error).__name__}"
            else:
                if not isinstance(found, str):
                    return found
                problem = found
            answers += 1
            if answers > len(_WAITS):
                break
            await asyncio.sleep(wait)
        return Refused(f"asked {answers} times: {problem}")

    def _get(self, wanted: Fetch) -> Page | Refused | str:
        """One request; text is an answer that may be another one later.

        Raises `SourceStopped`, `DecodeError`, `LimitExceeded`, and what sockets raise.
        """
        status, body = self._request(wanted)
        if status == 200:
            return _read(body)
        text = f"{status} {body[:200].decode(errors='replace')}"
        if status in (401, 403):
            raise SourceStopped(
                f"{self._url} refuses our secret: {text}",
                hint="put worker_replication_secret into the file of auth_file=…",
            )
        told = f"{self._url} answered {text}"
        return Refused(told) if 400 <= status < 500 else told

    def _connection(self) -> http.client.HTTPConnection:
        """One that is not open yet."""
        if self._file:
            return _UnixConnection(self._file, timeout=CONNECT_SECONDS)
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=CONNECT_SECONDS, context=self._tls
        )

    def _request(self, wanted: Fetch) -> tuple[int, bytes]:
        name = urllib.parse.quote(wanted.stream, safe="")
        query = {
            "from_token": wanted.after,
            "upto_token": wanted.upto,
            "instance_name": wanted.instance,
        }
        path = (
            f"/_synapse/replication/get_repl_stream_updates/{name}/{secrets.token_hex(8)}"
            f"?{urllib.parse.urlencode(query)}"
        )
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        connection = self._connection()
        try:
            try:
                connection.connect()
            except TimeoutError as error:
                raise ConnectionError("no connection in time") from error
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
    rows: list[tuple[int, bytes]] = []
    lost: list[tuple[int, str]] = []
    try:
        value = read_json(body.decode())
        for token, row in value["updates"]:
            try:
                rows.append((token, encode_value(row)))
            except DecodeError as error:
                lost.append((token, error.reason))
        upto, limited = value["upto_token"], bool(value["limited"])
        writer = str(value.get("instance_name", ""))
    except (UnicodeDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DecodeError(f"the answer with missed rows cannot be read: {error!r:.200}") from error
    numbers = [upto, *(token for token, _ in rows), *(token for token, _ in lost)]
    if not all(type(one) is int and -(2**63) <= one < 2**63 for one in numbers):
        raise DecodeError("the answer with missed rows holds a token that is no integer")
    return Page(rows, upto, limited, lost, writer)


class Sources:
    """The addresses of one upstream where missed rows are fetched. `url`: with its options;
    `secret`: that requests bring, "" for none."""

    def __init__(self, url: Url, secret: str) -> None:
        self._updates = {
            key.partition(".")[2] or _MASTER: Updates(address, secret=secret)
            for key, address in url.options
            if key == "http" or key.startswith("http.")
        }

    async def fetch(self, wanted: Fetch, tell: Callable[[str], None]) -> Page | Refused:
        """What was missed, or why it cannot be had. `tell`: see `Updates.fetch`; an address that
        does not answer is asked for as long as it takes. Raises `SourceStopped`."""
        writer = wanted.instance
        option = "http" if writer == _MASTER else f"http.{writer}"
        hint = f"{option}=HOST:PORT; http= where the upstream is a logweir"
        no_address = Refused(f"no address for writer {writer} ({hint})")
        own = self._updates.get(writer)
        updates = own or self._updates.get(_MASTER)
        if updates is None:
            return no_address
        page = await updates.fetch(wanted, tell)
        is_told = isinstance(page, Page) and page.writer == writer
        return page if own is not None or is_told else no_address
