"""The addresses of servers that commands talk to."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Final

from logweir.replication.protocols import parse_url
from logweir.replication.urls import Url
from logweir.tools.cli.passwords import asked_password

_VARIABLE: Final = "LOGWEIR_PASSWORD"


def peer_url(text: str) -> Url:
    """The address of a server, with a password if it names a user.

    One that stands neither in the address nor in a file that it names is taken from the environment
    (`LOGWEIR_PASSWORD`), or asked for where a person is at a terminal. Raises `ConfigError`.
    """
    url = parse_url(text)
    if url.password or url.user in ("", "guest"):
        return url
    password = os.environ.get(_VARIABLE, "")
    if not password and sys.stderr.isatty() and os.path.exists("/dev/tty"):
        password = asked_password(f"Password of {url.user} at {url.host or url.socket}: ")
    return replace(url, password=password)
