"""HTTP/1.1 as a server speaks it here: heads are read, bodies thrown away. No I/O, no clock.

Requests of one connection are answered one by one, in their order. A head that is too long gets
431, what cannot be read 400, and the connection is closed; so it is after `HTTP_IDLE_SECONDS` of
`logweir.limits` without a request, and after the answer to `Connection: close` or to HTTP/1.0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from logweir.limits import HTTP_BODY_BYTES, HTTP_HEAD_BYTES, HTTP_IDLE_SECONDS
from logweir.replication.session import BaseSession, Parting

__all__ = ["JSON", "HttpSession", "Request", "error_body"]

JSON: Final = "application/json"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `target`: path and query as sent; `headers`: by lower-case name."""

    method: str
    target: str
    headers: dict[str, str]


class HttpSession(BaseSession[Request]):
    """HTTP/1.1, as much as is needed. Keeps the contract of `logweir.replication.session`.

    Events are `Request`s; each is to be answered once, in order.
    """

    def __init__(self, now: float) -> None:
        super().__init__()
        self._rest = b""
        self._body_bytes = 0
        self._heard = now
        self._owed = 0
        self._last = False

    def receive_data(self, data: bytes, now: float) -> Sequence[Request]:
        """See `Session`."""
        if self.close_reason or self._last:
            return ()
        self._heard = now
        self._rest += data
        found: list[Request] = []
        while not self.close_reason and not self._last:
            skipped = min(self._body_bytes, len(self._rest))
            self._rest = self._rest[skipped:]
            self._body_bytes -= skipped
            head, end, rest = self._rest.partition(b"\r\n\r\n")
            if self._body_bytes or not end:
                if len(self._rest) > HTTP_HEAD_BYTES:
                    self._refuse(431, "the head of the request is too long")
                break
            self._rest = rest
            if len(head) > HTTP_HEAD_BYTES:
                self._refuse(431, "the head of the request is too long")
                break
            request = self._request(head)
            if request is None:
                self._refuse(400, "the request cannot be read")
                break
            found.append(request)
            self._owed += 1
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
        return Request(words[0], words[1], headers)

    def answer(self, status: int, body: bytes, content_type: str = JSON) -> None:
        """Answer the oldest request that has none yet."""
        self._owed -= 1
        is_last = self._last and not self._owed
        self._put(status, body, is_last, content_type)
        if is_last:
            self.close_reason = Parting("the client wanted one answer only")

    def _put(self, status: int, body: bytes, is_last: bool, content_type: str = JSON) -> None:
        more = "Connection: close\r\n" if is_last else ""
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n{more}\r\n"
        )
        self._out.put(head.encode("latin-1"))
        self._out.put(body)

    def _refuse(self, status: int, reason: str) -> None:
        self._put(status, error_body("M_UNRECOGNIZED", reason), True)
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


def error_body(code: str, text: str) -> bytes:
    """The body of an answer that is an error."""
    return json.dumps({"errcode": code, "error": text}).encode()
