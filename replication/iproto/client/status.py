"""What a running server says of itself.

Every Tarantool answers VOTE: read-only, vclock, and from where on it holds the log. A logweir that
allows it tells all it knows by the function `logweir.status`, and what its spaces hold by
`logweir.checksums`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logweir.errors import ErrorCode, RemoteProtocolError, RequestError
from logweir.replication.iproto.client import Client, open_client
from logweir.replication.iproto.wire.codec import IprotoKey, RequestType, decode_ballot
from logweir.replication.service.protocol import CHECKSUMS_FUNCTION, STATUS_FUNCTION
from logweir.replication.urls import Url
from logweir.wal.mp import Value

_NOT_TOLD = frozenset(
    (ErrorCode.ACCESS_DENIED, ErrorCode.NO_SUCH_PROC, ErrorCode.UNKNOWN_REQUEST_TYPE)
)


async def _call(client: Client, function: str, arguments: Sequence[Value] = ()) -> Any:
    """The first value that a function of the server gives, else None. Raises `RequestError`."""
    body: dict[int, Value] = {
        int(IprotoKey.FUNCTION_NAME): function,
        int(IprotoKey.TUPLE): list(arguments),
    }
    told = await client.call(RequestType.CALL, body)
    values = told.body.get(IprotoKey.DATA)
    return values[0] if isinstance(values, list) and values else None


async def call_function(url: Url, function: str, *arguments: Value) -> Any:
    """The first value that a function of the server at `url` gives, None if it gives none.

    Raises `Unreachable`, `RequestError`: what the function raised, that there is none of that name,
    or that it may not be called.
    """
    async with open_client(url) as client:
        return await _call(client, function, arguments)


async def fetch_status(url: Url) -> dict[str, Any]:
    """The status of the server at `url`, in plain values. Raises `Unreachable`, `RequestError`."""
    async with open_client(url) as client:
        greeting = client.greeting.result()
        answer = await client.call(RequestType.VOTE)
        ballot = decode_ballot(answer.body)
        status: dict[str, Any] = {
            "url": str(url),
            "instance": str(greeting.instance),
            "version": ".".join(map(str, greeting.version)),
            "read_only": ballot.is_ro,
            "vclock": dict(ballot.vclock),
            "oldest_row": dict(ballot.gc_vclock),
        }
        try:
            told = await _call(client, STATUS_FUNCTION)
            status |= told if isinstance(told, dict) else {}
        except RequestError as error:
            if error.code not in _NOT_TOLD:
                raise
    return status


async def fetch_checksums(url: Url) -> dict[str, Any]:
    """The checksum of each space of the logweir at `url`, all at one position.

    Raises `Unreachable`, `RequestError`: it may not be asked, or is no logweir.
    """
    async with open_client(url) as client:
        try:
            told = await _call(client, CHECKSUMS_FUNCTION)
        except RequestError as error:
            if error.code not in _NOT_TOLD:
                raise
            raise RequestError(
                error.code,
                f"{url} does not tell checksums: {error.message}",
                hint="a logweir tells them to users who may execute everything; "
                "`logweir diff` compares with any Tarantool",
            ) from error
    if not isinstance(told, dict):
        raise RemoteProtocolError(f"{url} answered {CHECKSUMS_FUNCTION} with something else")
    return told
