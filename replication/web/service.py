"""The page of a server, as a `Service` of its listener.

=============  =====================================================================================
GET of         answer
=============  =====================================================================================
`/`            the page
`/page.css`,   its style and its program
`/page.js`
`/events`      what the server does: a stream of events, see `web.board`; 503 to one more than
               `limits.WEB_WATCHERS`
=============  =====================================================================================

Nothing can be changed here. A browser is told to load and run nothing but these.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from logweir.limits import WEB_OUTPUT_HIGH_BYTES, WEB_WATCHERS
from logweir.replication.httpconversation import HttpConversation
from logweir.replication.httpsession import HttpSession
from logweir.replication.link import Link
from logweir.replication.listener import Service
from logweir.replication.service.shared import Shared
from logweir.replication.web.asgi import Application, Message, Receive, Send, converse
from logweir.replication.web.board import Board
from logweir.replication.web.gate import Gate
from logweir.replication.web.pages import page_file

_TEXT: Final = "text/plain; charset=utf-8"
_HEADERS: Final = tuple(
    (name.encode(), value.encode())
    for name, value in {
        "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }.items()
)


class WebService(Service):
    """See the module's text. `host`: on which it is listened on, "" for a unix socket."""

    def __init__(self, shared: Shared, board: Board, host: str) -> None:
        self._board = board
        self.watchers = 0
        routes = [
            Route("/", _page("page.html", "text/html")),
            Route("/page.css", _page("page.css", "text/css")),
            Route("/page.js", _page("page.js", "text/javascript")),
            Route("/events", self._events),
        ]
        self._gate = Gate(Starlette(routes=routes), shared, host)
        self._app = _with_headers(self._gate)

    def begin(self, link: Link) -> HttpConversation:
        link.limit_output(WEB_OUTPUT_HIGH_BYTES)
        return converse(link, self._app)

    def refusal(self, reason: str) -> bytes:
        session = HttpSession(0.0)
        session.answer(503, reason.encode(), _TEXT)
        return session.data_to_send()

    def shows_guests(self) -> bool:
        """Whether who has not logged in sees the page."""
        return self._gate.may("")

    async def _events(self, request: Request) -> Response:
        if self.watchers >= WEB_WATCHERS:
            text = f"{self.watchers} pages are open, which is the most; close one.\n"
            return PlainTextResponse(text, 503, {"Retry-After": "10"})
        events = self._told(request.scope["user"])
        return _Counted(self, events, media_type="text/event-stream")

    async def _told(self, user: str) -> AsyncIterator[bytes]:
        async for event in self._board.events():
            if not self._gate.may(user):
                return
            yield event


class _Counted(StreamingResponse):
    """A stream that counts as a watcher while it is answered."""

    def __init__(self, service: WebService, events: AsyncIterator[bytes], media_type: str) -> None:
        super().__init__(events, media_type=media_type)
        self._service = service

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        self._service.watchers += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._service.watchers -= 1


def _page(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        del request
        text = page_file(name)
        if name == "page.css":
            text = page_file("base.css") + text
        return Response(text, media_type=kind)

    return respond


def _with_headers(app: Application) -> Application:
    async def answered(scope: Message, receive: Receive, send: Send) -> None:
        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await app(scope, receive, send_more)

    return answered
