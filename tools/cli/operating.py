"""What commands do to a store that is served, by its address, or to a folder that is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import logweir
from logweir.errors import ConfigError, ErrorCode, RemoteProtocolError, RequestError
from logweir.replication.service.protocol import PREFIX
from logweir.tools.cli.refusals import LOGIN_HINT
from logweir.wal.mp import Value

if TYPE_CHECKING:  # a folder is looked at without a network
    from logweir.replication.urls import Url

Ask = Callable[..., Any]
"""Makes the call of `Administration` that is named, with the arguments behind it."""

StoreArgument = Annotated[
    str, typer.Argument(metavar="WHERE", help="A store's folder, or its server: tarantool://…")
]
"""The argument of commands that take a folder or a server."""

_SAFE_HOSTS = ("127.0.0.1", "::1", "localhost")


def server_at(where: str) -> Url | None:
    """The server, if that is an address. Raises `ConfigError` for one of another protocol."""
    if "://" not in where:
        return None
    from logweir.tools.cli.peers import peer_url

    url = peer_url(where)
    if url.scheme != "tarantool":
        raise ConfigError(
            "WHERE",
            f"{url.scheme}:// takes no orders of operators",
            origin="argument",
            hint="give the address tarantool://USER@HOST:PORT of the same server",
        )
    return url


@contextmanager
def operate(where: str, *, says_password: bool = False) -> Iterator[Ask]:
    """Make calls of `Administration` on what `where` names.

    `says_password`: one of them has a password among its arguments, which is sent over a network
    encrypted only. Raises `ConfigError`, and what opening the folder raises.
    """
    url = server_at(where)
    if url is None:
        from logweir.replication.administration import Administration  # and with it the store

        with logweir.open(Path(where), create=False) as log:
            calls = Administration(log).calls()
            yield lambda name, *arguments: calls[PREFIX + name](*arguments)
        return
    if says_password and not (url.socket or url.host in _SAFE_HOSTS or url.flag("tls")):
        raise ConfigError(
            "WHERE",
            f"a password would go to {url.host} for all to read",
            origin="argument",
            hint="add ?tls=1 to the address, and serve with --tls-certificate",
        )
    yield lambda name, *arguments: _ask(url, name, arguments)


def _ask(url: Url, name: str, arguments: tuple[Value, ...]) -> Any:
    from logweir.replication import loop
    from logweir.replication.iproto.client.status import call_function

    try:
        return loop.run(call_function(url, PREFIX + name, *arguments))
    except RequestError as error:
        hints = {
            ErrorCode.ACCESS_DENIED: "it is for who may do everything: admin, or the role super",
            ErrorCode.NO_SUCH_PROC: "is that a logweir, and of this version?",
            ErrorCode.NO_SUCH_USER: f"`logweir user list {url}` shows all",
            ErrorCode.PASSWORD_MISMATCH: LOGIN_HINT,
            ErrorCode.NO_SUCH_SPACE: f"`logweir {'topic' if 'topic' in name else 'space'} list "
            f"{url}` shows those that there are",
        }
        hint = hints.get(error.code)
        if hint is None:
            raise
        raise RequestError(error.code, f"{url}: {error.message}", hint=hint) from error
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{url}: {error}") from error
