"""HTTP/1.1 as a server speaks it here: heads are read, bodies thrown away. No I/O, no clock.

Requests of one connection are answered one by one, in their order: whole, or begun and continued
while they are made, in chunks (to HTTP/1.0 until the connection ends). A head that is too long gets
431, what cannot be read 400, and the connection is closed; so it is after `HTTP_IDLE_SECONDS` of
`logweir.limits` without a request, and after the answer to `Connection: close` or to HTTP/1.0.
Heads behind `HTTP_WAITING` requests without an answer are read when these are answered and
`receive_data` is called again, be it with nothing: its owner has nothing received meanwhile.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from logweir.limits import HTTP_BODY_BYTES, HTTP_HEAD_BYTES, HTTP_IDLE_SECONDS, HTTP_WAITING
from logweir.replication.session import BaseSession, Parting

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `target`: path and query as sent; `headers`: by lower-case name; `version`:
    "1.1", …"""

    method: str
    target: str
    headers: dict[str, str]
    version: str = "1.1"


class HttpSession(BaseSession[Request]):
    """HTTP/1.1, as much as is needed. Keeps the contract of `logweir.replication.session`.

    Events are `Request`s; each is to be answered once, in order.
    """

    def __init__(self, now: float) -> None:
        super().__init__()
        self._rest = b""
        self._body_bytes = 0
        self._heard = now
        self._owed: deque[Request] = deque()
        self._last = False
        self._is_chunked = False

    def receive_data(self, data: bytes, now: float) -> Sequence[Request]:
        """See `Session`."""
        if self.close_reason or self._last:
            return ()
        self._heard = now
        self._rest = rest = self._rest + data
        found: list[Request] = []
        at = 0
        while not self.close_reason and not self._last and len(self._owed) < HTTP_WAITING:
            skipped = min(self._body_bytes, len(rest) - at)
            at += skipped
            self._body_bytes -= skipped
            end = -1 if self._body_bytes else rest.find(b"\r\n\r\n", at)
            if (len(rest) if end < 0 else end) - at > HTTP_HEAD_BYTES:
                self._refuse(431, "the head of the request is too long")
                break
            if end < 0:
                break
            request = self._request(rest[at:end])
            at = end + 4
            if request is None:
                self._refuse(400, "the request cannot be read")
                break
            found.append(request)
            self._owed.append(request)
        self._rest = b"" if self.close_reason or self._last else rest[at:]
        return found

    def _request(self, head: bytes) -> Request | None:
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        pairs = [line.partition(":") for line in lines]
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        size = headers.get("content-length", "0")
        chunked = "transfer-encoding" in headers
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or chunked:
            return None
        if not (size.isascii() and size.isdigit() and len(size) < 10):
            return None
        self._body_bytes = int(size)
        if self._body_bytes > HTTP_BODY_BYTES:
            return None
        wanted = headers.get("connection", "").lower()
        self._last = wanted == "close" or (words[2] == "HTTP/1.0" and wanted != "keep-alive")
        return Request(words[0], words[1], headers, words[2].removeprefix("HTTP/"))

    def answer(self, status: int, body: bytes, content_type: str = JSON) -> None:
        """Answer the oldest request that has none yet."""
        self.begin_answer(status, _sized(body, content_type))
        self.put_body(body)
        self.end_answer()

    def begin_answer(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Begin the answer to the oldest request that has none yet; `put_body` and `end_answer`
        follow. `headers`: with `Content-Length` if the size of the body is known."""
        pairs = list(headers)
        is_sized = any(name.lower() == "content-length" for name, _ in pairs)
        is_old = bool(self._owed) and self._owed[0].version == "1.0"
        self._is_chunked = not is_sized and not is_old
        self._last |= not is_sized and is_old
        if self._is_chunked:
            pairs.append(("Transfer-Encoding", "chunked"))
        self._head(status, pairs, self._last and len(self._owed) <= 1)

    def put_body(self, data: bytes) -> None:
        """More of the body that was begun. What asks for the head only gets no body."""
        if not data or (self._owed and self._owed[0].method == "HEAD"):
            return
        self._out.put(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def end_answer(self) -> None:
        """The answer that was begun is whole."""
        asked = self._owed.popleft() if self._owed else None
        if self._is_chunked and (asked is None or asked.method != "HEAD"):
            self._out.put(b"0\r\n\r\n")
        if self._last and not self._owed:
            self.close_reason = Parting("the client wanted one answer only")

    def _head(self, status: int, headers: Iterable[tuple[str, str]], is_last: bool) -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers]
        lines += ["Connection: close"] * is_last
        self._out.put(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def _refuse(self, status: int, reason: str) -> None:
        body = error_body("M_UNRECOGNIZED", reason)
        self._head(status, _sized(body, JSON), True)
        self._out.put(body)
        self.close_reason = reason

    @property
    def kept_bytes(self) -> int:
        """See `Keeps` of `logweir.replication.link`."""
        return len(self._rest)

    def next_deadline(self) -> float | None:
        """See `Session`."""
        return self._heard + HTTP_IDLE_SECONDS

    def deadline_passed(self, now: float) -> Sequence[Request]:
        """See `Session`."""
        if self._owed:
            self._heard = now
        elif now >= self._heard + HTTP_IDLE_SECONDS:
            self.close_reason = Parting("the client asked for nothing more")
        return ()


def _sized(body: bytes, content_type: str) -> list[tuple[str, str]]:
    return [("Content-Type", content_type), ("Content-Length", str(len(body)))]


def error_body(code: str, text: str) -> bytes:
    """The body of an answer that is an error."""
    return json.dumps({"errcode": code, "error": text}).encode()
