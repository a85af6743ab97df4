"""`logweir tap`: what a TAP server streams, from the command line."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from logweir.errors import ConfigError, Unreachable
from logweir.replication.bucket.address import vbuckets_of
from logweir.replication.memcached.wire.address import SCHEMES
from logweir.replication.memcached.wire.codec import Opcode
from logweir.replication.memcached.wire.messages import Connect, Marks, Opaque, Option, TapMessage
from logweir.replication.urls import Url, option_seconds
from logweir.tools.cli.common import utc_text
from logweir.tools.cli.follow import follow_into
from logweir.tools.cli.output import Output
from logweir.tools.cli.tapnames import names, tap_url
from logweir.wal.render import to_json
from logweir.wal.selection import parse_time

if TYPE_CHECKING:  # the store, which `--help` and a wrong option do without
    from logweir.replication.memcached.client import TapStream

Action = Literal["watch", "dump", "takeover", "names"]

_FUTURE: Final = 2**64 - 1
_KINDS: Final = {
    Opcode.TAP_MUTATION: "MUTATION",
    Opcode.TAP_DELETE: "DELETE",
    Opcode.TAP_FLUSH: "FLUSH",
    Opcode.TAP_VBUCKET_SET: "VBUCKET_SET",
}
_MARKS: Final = {
    Opaque.INITIAL_VBUCKET_STREAM: "BACKFILL_BEGIN",
    Opaque.CLOSE_BACKFILL: "BACKFILL_END",
}
_SHOWN_VALUE: Final = 80


def command(
    out: Output,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    where: Annotated[
        str, typer.Argument(metavar="URL", help="tap://… of the server; names: or a store's folder")
    ],
    to: Annotated[
        str, typer.Argument(metavar="[TO]", help="takeover: tap://… of the taker, or a folder.")
    ] = "",
    vbuckets: Annotated[
        str, typer.Option(metavar="LIST", help="Only these, such as 5,8-10; takeover: which ones.")
    ] = "",
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="now|all|TIME", help="watch: what comes before the changes of now."
        ),
    ] = "",
    keys_only: Annotated[
        bool, typer.Option("--keys-only", help="watch, dump: keys without values.")
    ] = False,
    name: Annotated[
        str, typer.Option(help="watch: of the stream, which goes on where it was acknowledged.")
    ] = "",
    register: Annotated[
        bool,
        typer.Option("--register", help="watch: the server keeps the name until it is dropped."),
    ] = False,
    drop: Annotated[
        str, typer.Option(metavar="NAME", help="names: make the server forget this stream.")
    ] = "",
) -> int:
    """Watch, dump and move what a TAP server has, and list its named streams.

    ACTION is watch, dump, takeover or names. watch prints changes as they come, until it is
    stopped. dump prints every item as JSON lines; exit code 1 if what it printed may not be all.
    takeover moves vbuckets from the server URL to the server or into the folder TO. names lists the
    named streams of a server's bucket, or of a folder that is not served, and with --drop makes it
    forget one.
    """
    given = {"from": start, "keys-only": keys_only, "name": name, "register": register}
    given |= {"drop": drop, "TO": to, "vbuckets": vbuckets}
    _check(action, {option for option, value in given.items() if value})
    if action == "names":
        return names(out, where, drop)
    url = _address(where, vbuckets)
    if action == "takeover":
        return _takeover(out, url, to)
    for option in ("takeover", "expiry") + (("eof",) if action == "watch" else ()):
        if url.option(option):
            raise ConfigError(option, f"{action} does not take it, in {url}")
    options = Option.SUPPORT_ACK | Option.FIX_FLAG_BYTEORDER
    options |= Option.REQUEST_KEYS_ONLY if keys_only else 0
    if action == "dump":
        return _dump(out, url, _connect(url, options | Option.DUMP))
    if register and not name:
        raise ConfigError("--register", "needs the --name that is kept")
    options |= Option.REGISTERED_CLIENT if register else 0
    date = _date(start or "now")
    options |= Option.BACKFILL if date else 0
    connect = replace(_connect(url, options), name=name.encode("utf-8", "surrogateescape"))
    return _watch(out, url, replace(connect, backfill=date))


def _check(action: Action, given: set[str]) -> None:
    """Raise `ConfigError` for what `action` does not take, or needs."""
    takes = {
        "watch": {"from", "keys-only", "name", "register", "vbuckets"},
        "dump": {"keys-only", "vbuckets"},
        "takeover": {"TO", "vbuckets"},
        "names": {"drop"},
    }[action]
    for option in sorted(given - takes):
        shown = option if option.isupper() else f"--{option}"
        raise ConfigError(shown, f"is not for logweir tap {action}")
    if action == "takeover" and "TO" not in given:
        raise ConfigError("TO", "is missing", hint="logweir tap takeover URL TO --vbuckets LIST")


def _address(text: str, vbuckets: str) -> Url:
    """The address of a TAP server, with `vbuckets` if they are given. Raises `ConfigError`."""
    url = tap_url(text)
    if vbuckets:
        others = tuple(pair for pair in url.options if pair[0] != "vbuckets")
        url = replace(url, options=(*others, ("vbuckets", vbuckets)))
    return url


def _connect(url: Url, options: Option) -> Connect:
    vbuckets = tuple(sorted(vbuckets_of(url)))
    return Connect(b"", options | (Option.LIST_VBUCKETS if vbuckets else 0), vbuckets=vbuckets)


def _date(start: str) -> int:
    """The date of BACKFILL; 0: everything. Raises `ConfigError`."""
    if start in ("now", "all"):
        return _FUTURE if start == "now" else 0
    return max(1, int(parse_time(start, origin="--from")))


def _idle_seconds(url: Url) -> float:
    return option_seconds(url, "stall", SCHEMES[url.scheme].stall_seconds)


def _stream(url: Url, connect: Connect) -> TapStream:
    """Not connected yet."""
    from logweir.replication.memcached.client import TapStream

    return TapStream(url, connect, idle_seconds=_idle_seconds(url))


def _watch(out: Output, url: Url, connect: Connect) -> int:
    marks = Marks()
    with _stream(url, connect) as stream:
        asked: list[int] = []

        def end(number: int, frame: FrameType | None) -> None:
            asked.append(number)
            stream.stop()

        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not in the main thread
                signal.signal(number, end)
        for message in stream:
            marks.take(message)
            if row := _row(message):
                out.json(row) if out.as_json else out.line(_line(out, row))
                out.flush()  # before it is acknowledged
    if asked:
        return 0
    hint = "see the server's log"
    if not marks.any and stream.ended_whole:
        hint = "memcached's default engine streams nothing live: logweir tap dump prints its items"
    raise Unreachable(str(url), "the server ended the stream", hint=hint)


def _dump(out: Output, url: Url, connect: Connect) -> int:
    eof = url.option("eof")
    if eof not in ("", "whole"):
        raise ConfigError("eof", f"{eof!r} in {url}", hint="write eof=whole")
    marks = Marks()
    with _stream(url, connect) as stream:
        for message in stream:
            marks.take(message)
            if message.opcode == Opcode.TAP_MUTATION:
                out.json(_row(message))
        if marks.is_whole(ended_whole=stream.ended_whole, eof_is_whole=bool(eof)):
            return 0
    text = f"{url}: this may not be all: the server did not mark the end ({marks.items} items)"
    out.warning(f"{text} hint: memcached's default engine never does: add eof=whole for it")
    return 1


def _takeover(out: Output, url: Url, to: str) -> int:
    vbuckets = vbuckets_of(url)
    if not vbuckets:
        raise ConfigError("--vbuckets", "says which ones are moved, such as 5,8-10")
    if "://" not in to:
        options = tuple(pair for pair in url.options if pair[0] != "takeover")
        source = replace(url, options=(*options, ("takeover", "1")))
        from logweir.replication.server import ServerOptions

        return follow_into(out, ServerOptions(follow=[source]), Path(to))
    from logweir.replication.memcached.client import migrate

    count = migrate(url, _address(to, ""), vbuckets, idle_seconds=_idle_seconds(url))
    if out.as_json:
        out.json({"vbuckets": sorted(vbuckets), "messages": count})
    else:
        out.message(f"{len(vbuckets)} vbuckets moved: {count} messages")
    return 0


def _row(message: TapMessage) -> dict[str, Any]:
    """A message as an object, {} for one that says nothing about items; see `docs/json.md`."""
    if message.opcode == Opcode.TAP_OPAQUE:
        kind = _MARKS.get(message.number)  # type: ignore[call-overload]
        return {"type": kind, "vbucket": message.vbucket} if kind else {}
    kind = _KINDS.get(message.opcode)  # type: ignore[call-overload]
    if kind is None:
        return {}
    row: dict[str, Any] = {"type": kind, "vbucket": message.vbucket}
    if message.opcode == Opcode.TAP_VBUCKET_SET:
        return {**row, "state": message.number}
    if message.opcode == Opcode.TAP_FLUSH:
        return row
    row |= {"key": _text(message.key), "cas": message.cas}
    if message.opcode == Opcode.TAP_MUTATION:
        row |= {"flags": message.item_flags, "expiry": message.expiry}
        if message.has_value:
            row["value"] = _text(message.value)
    return row


def _text(data: bytes) -> object:
    """Bytes that are UTF-8 as text, others as `{"$bin": …}`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return to_json(data)


def _line(out: Output, row: dict[str, Any]) -> str:
    """A row for people: what, vbucket, key, and for an item what it holds."""
    parts = [f"{row['type']:<11}", f"{row['vbucket']:>4}"]
    if "state" in row:
        parts.append(f"state {row['state']}")
    if "key" in row:
        parts.append(out.json_text(row["key"]))
    if row.get("flags"):
        parts.append(f"flags {row['flags']}")
    if row.get("expiry"):
        parts.append(f"until {utc_text(row['expiry'])}")
    if "value" in row:
        value = out.json_text(row["value"])
        parts.append(value if len(value) <= _SHOWN_VALUE else value[:_SHOWN_VALUE] + "…")
    return "  ".join(parts)
