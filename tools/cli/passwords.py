"""Passwords that people type, or that come on stdin: never arguments."""

from __future__ import annotations

import sys
from getpass import getpass

from logweir.errors import ConfigError


def read_password() -> str:
    """The first line of stdin. Raises `ConfigError`."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise ConfigError("password", "is missing: stdin ended before it", origin="stdin")
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise _no_text("stdin") from error


def asked_password(prompt: str) -> str:
    """What is typed at the terminal, unseen. Raises `ConfigError`."""
    try:
        typed = getpass(prompt)
        typed.encode()
    except EOFError as error:
        raise ConfigError("password", "nothing was typed", origin="terminal") from error
    except UnicodeError as error:
        raise _no_text("terminal") from error
    return typed


def new_password() -> str:
    """One that is typed twice, and is not empty. Raises `ConfigError`."""
    while True:
        typed = asked_password("Password: ")
        if typed and asked_password("Repeat for confirmation: ") == typed:
            return typed
        sys.stderr.write("It is empty.\n" if not typed else "The two are not the same.\n")


def _no_text(origin: str) -> ConfigError:
    return ConfigError("password", "it is not in UTF-8", origin=origin)
