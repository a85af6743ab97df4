"""Who may see the page of a server: whoever may ask for its status by `logweir.status`.

A client is the user that its connection names (a certificate, or `from`), or the one that it says
with a password (HTTP Basic, RFC 7617, in UTF-8), else guest. Whoever may not see the page and has
not said who it is, is asked to (401); failed logins are counted, told and slowed as on every port.
Grants are read again before each event, so a page goes dark when they are taken back.

Who shows guests a store on loopback means people of this machine, not the pages in their browsers,
whose names may lead here: there a guest is answered only if it asks for an IP address or localhost.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response

from logweir.errors import RequestError
from logweir.replication.addresses import is_loopback
from logweir.replication.link import Link
from logweir.replication.service.credentials import StoreCredentials
from logweir.replication.service.protocol import STATUS_FUNCTION
from logweir.replication.service.shared import Shared
from logweir.replication.web.asgi import Application, Message, Receive, Send
from logweir.store.schema.access import GUEST_ID

_REALM = 'Basic realm="logweir", charset="UTF-8"'


class Gate:
    """Around an application: lets those in who may see the page, and names them as
    `scope["user"]`. `host`: on which it is listened on, "" for a unix socket."""

    def __init__(self, app: Application, shared: Shared, host: str) -> None:
        self._app = app
        self._shared = shared
        self._is_local = is_loopback(host)
        self._credentials = StoreCredentials(shared)

    def may(self, user: str) -> bool:
        """Whether a user may see the page now; "" for guest."""
        return self._refusal(user) is None

    def _refusal(self, user: str) -> RequestError | None:
        try:
            access = self._shared.access(self._shared.user_id(user))
            self._shared.check_call(access, STATUS_FUNCTION)
        except RequestError as error:
            return error
        return None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """See ASGI."""
        found = self._enter(scope["link"], Headers(scope=scope))
        if isinstance(found, Response):
            await found(scope, receive, send)
            return
        await self._app({**scope, "user": found}, receive, send)

    def _enter(self, link: Link, headers: Headers) -> str | Response:
        """Who comes in, or what is answered instead."""
        user, given = link.user, headers.get("authorization")
        if given is not None:
            name, password = _basic(given)
            if not self._credentials.check_password(name, password):
                if self._shared.logins.failed(link, name):
                    link.call_after_next_read(lambda: link.close("too many failed logins"))
                return _ask("The user or the password is wrong.")
            link.know()
            user = name
        refusal = self._refusal(user)
        if refusal is not None:
            if not user:
                return _ask("Log in as a user of the store.")
            hint = f"`logweir user grant DIR {user} execute` lets it see this page."
            return PlainTextResponse(f"{refusal.message}. {hint}\n", 403)
        is_guest = self._shared.user_id(user) == GUEST_ID
        if is_guest and self._is_local and not _is_own(headers.get("host", "")):
            text = "Ask for localhost or an IP address, or log in: guests come from this machine.\n"
            return PlainTextResponse(text, 403)
        return user


def _basic(given: str) -> tuple[str, str]:
    """Name and password; both "" if they cannot be read."""
    kind, _, text = given.partition(" ")
    read = ""
    if kind.lower() == "basic":
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            read = base64.b64decode(text.strip(), validate=True).decode()
    name, _, password = read.partition(":")
    return name, password


def _ask(text: str) -> Response:
    return PlainTextResponse(text + "\n", 401, {"WWW-Authenticate": _REALM})


def _is_own(host: str) -> bool:
    """Whether that is how this machine itself is asked for."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
