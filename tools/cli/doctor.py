"""`logweir doctor`: whether all is there that a store and its server need."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import os
import shutil
import stat
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from logweir.errors import ConfigError, LogweirError
from logweir.replication import loop
from logweir.replication.arrival import bound_sockets
from logweir.replication.listener import bind_hint
from logweir.replication.protocols import (
    check_addresses,
    fetch_status,
    parse_listen_url,
    parse_url,
)
from logweir.replication.unixsocket import connect_file, socket_hint
from logweir.replication.urls import Url
from logweir.tools.cli.configfile import evaluate, origin_of
from logweir.tools.cli.main import load_command
from logweir.tools.cli.output import BOLD_RED, Output
from logweir.tools.cli.pageaddress import page_address
from logweir.tools.cli.serve import OTHER_FILES, listen_addresses, tls_settings
from logweir.tools.cli.surroundings import Finding, folder_findings, machine_findings
from logweir.wal.render import words

_UPSTREAM_SECONDS: Final = 5.0
_COLOURS: Final = {"ok": "32", "note": "33", "problem": BOLD_RED}


def command(
    out: Output,
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="The store's folder, if not that of the settings."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The file that serve is given.")
    ] = None,
) -> int:
    """Look whether everything is there that a store and its server need, and what to do if not.

    Of the machine: what is compiled and installed, limits, memory, the clock. Of the folder, which
    need not exist yet: rights, disk, room, how long a sync takes, who has it open; what is in it
    logweir verify reads. Of the settings that logweir serve would have: addresses and certificates.
    A note works, and may surprise. Exit code 1 if there is a problem.
    """
    findings = list(_findings(directory, file))
    problems = [one for one in findings if one.state == "problem"]
    if out.as_json:
        out.json({"ok": not problems, "findings": [one._asdict() for one in findings]})
        return 1 if problems else 0
    checks = max(len(one.check) for one in findings)
    width = shutil.get_terminal_size().columns if out.is_terminal else sys.maxsize
    for one in findings:
        state = out.styled(f"{one.state:<7}", _COLOURS[one.state])
        lines = _lines(one.found, width - checks - 11)
        lines += _lines(f"→ {one.hint}" if one.hint else "", width - checks - 11)
        out.line(f"{state}  {one.check:<{checks}}  {lines[0]}")
        for line in lines[1:]:
            out.line(" " * (checks + 11) + line)
    notes = sum(one.state == "note" for one in findings)
    out.message(f"{words(len(problems), 'problem')}, {words(notes, 'note')}")
    return 1 if problems else 0


def _lines(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)


def _findings(directory: Path | None, file: Path | None) -> Iterator[Finding]:
    try:
        context = evaluate(load_command("serve"), file)
    except (ConfigError, typer.TyperException) as error:
        yield from machine_findings(OTHER_FILES)
        if directory is not None:
            yield from folder_findings(directory)
        yield _refused("settings", error)
        return
    params = context.params
    yield from machine_findings(params["connections"] + OTHER_FILES, params["memory"])
    folder = directory or params["directory"]
    if folder is None:
        yield Finding("folder", "ok", "none is named: `logweir doctor DIR` looks at one")
    else:
        yield from folder_findings(Path(folder))
    yield from _settings(context)


def _settings(context: typer.Context) -> Iterator[Finding]:
    """What the settings name: addresses that are free, files that are there."""
    params = context.params
    origins = {origin_of(context, name) for name in params if name != "config"}
    given = sorted(origins - {"default"})
    yield Finding("settings", "ok", f"from {', '.join(given)}" if given else "the defaults")
    try:
        tls = tls_settings(*(params[f"tls_{one}"] for one in ("certificate", "key", "client_ca")))
        if tls is not None:
            yield Finding("tls", "ok", f"{params['tls_certificate']} and its key can be used")
    except ConfigError as error:
        yield _refused("tls", error)
    for text in params["follow"] or ():
        try:
            url = parse_url(text, origin=origin_of(context, "follow"))
            check_addresses(follow=[url])
        except ConfigError as error:
            yield _refused("upstream", error)
        else:
            yield _upstream(url)
    addresses: list[tuple[str, str]] = [
        ("listen", one) for one in listen_addresses(params["listen"], params["follow"])
    ]
    addresses += [(name, params[name]) for name in ("metrics", "web") if params[name]]
    for name, text in addresses:
        origin = origin_of(context, name)
        try:
            if name == "listen":
                url = parse_listen_url(text, origin=origin)
                check_addresses(listen=[url])
                yield _address(name, url)
            elif page := page_address(name, text, origin):
                yield _address(name, page)
        except ConfigError as error:
            found = _refused(name, error)  # who gave no settings may want no server
            yield found if given else found._replace(state="note")
    if params["web"] and importlib.util.find_spec("starlette") is None:
        yield Finding("web", "problem", "the page needs more", "pip install 'logweir[web]'")


def _refused(check: str, error: ConfigError | typer.TyperException) -> Finding:
    if isinstance(error, ConfigError):
        return Finding(check, "problem", error.message, error.hint)
    return Finding(check, "problem", error.format_message())


def _address(name: str, url: Url) -> Finding:
    """Whether a listener could be bound."""
    try:
        if url.socket:
            _look_at_file(url.socket)
        else:
            for one in loop.run(bound_sockets(url.host, url.port)):
                one.close()
    except OSError as error:
        text = f"{url} cannot be bound: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE:
            hint = "that is well if it is this server; else choose another address"
            return Finding(name, "note", f"{url} is taken", hint)
        hint = socket_hint(error) if url.socket else bind_hint(error)
        return Finding(name, "problem", text, hint)
    return Finding(name, "ok", f"{url} is free")


def _look_at_file(path: str) -> None:
    """Raise `OSError` where no socket could have this name. What nobody listens on makes way."""
    folder = os.path.dirname(path) or "."
    if not os.access(folder, os.W_OK | os.X_OK):
        code = errno.EACCES if os.path.isdir(folder) else errno.ENOENT
        raise OSError(code, os.strerror(code))
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket is there")
    with suppress(ConnectionRefusedError):
        connect_file(path, _UPSTREAM_SECONDS).close()
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _upstream(url: Url) -> Finding:
    """Whether an upstream answers. One that is away is waited for, so that is no problem."""
    try:
        loop.run(asyncio.wait_for(fetch_status(url), _UPSTREAM_SECONDS))
    except LogweirError as error:
        return Finding("upstream", "note", error.message, error.hint)
    except TimeoutError:
        return Finding("upstream", "note", f"{url} said nothing in {_UPSTREAM_SECONDS} seconds")
    return Finding("upstream", "ok", f"{url} answers")
