"""An ASGI application over a `Link`: what comes in is bounded and answered as on every other port.

Source: the ASGI specification 3.0, HTTP 2.4. What goes out waits until the client takes it: `send`
returns when there is room, and raises `OSError` once the client has left. Requests have no body
here; `httpsession` throws it away. `scope["link"]` is the connection.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from logweir.replication.httpconversation import HttpConversation
from logweir.replication.httpsession import Request
from logweir.replication.link import Link

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


def converse(link: Link, app: Application) -> HttpConversation:
    """A conversation in which `app` answers."""

    async def respond(request: Request) -> None:
        is_asked = True

        async def receive() -> Message:
            nonlocal is_asked
            if is_asked:
                is_asked = False
                return {"type": "http.request", "body": b"", "more_body": False}
            await link.gone
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if not link.is_open:
                raise OSError("the client has left")
            if message["type"] == "http.response.start":
                pairs = message.get("headers", ())
                headers = (
                    (name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs
                )
                session.begin_answer(message["status"], headers)
                return
            session.put_body(message.get("body", b""))
            if not message.get("more_body", False):
                session.end_answer()
            link.flush()
            await link.drained()

        await app(_scope(request, link), receive, send)

    conversation = HttpConversation(link, respond)
    session = conversation.session
    return conversation


def _scope(request: Request, link: Link) -> Message:
    path, _, query = request.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": request.version,
        "method": request.method,
        "scheme": "https" if link.is_encrypted else "http",
        "path": urllib.parse.unquote(path, "latin-1"),
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in request.headers.items()
        ],
        "client": None,
        "server": None,
        "link": link,
    }
