"""Telling a service manager how a server stands: the protocol of systemd's `Type=notify`.

One datagram of lines `NAME=VALUE` to the unix socket that `NOTIFY_SOCKET` names, a path or, with
`@` in front, an abstract name. Source: sd_notify(3), and the datagrams that systemd-notify sends.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from typing import Final

_SECONDS: Final = 1.0  # a manager that takes nothing holds nobody up for longer


def notify(*lines: str) -> None:
    """Tell the manager, if there is one, that it is so: `READY=1`, `STOPPING=1`. A manager that
    cannot be told is no reason to stop."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        return
    if where.startswith("@"):
        where = "\0" + where[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(_SECONDS)
        manager.sendto("\n".join(lines).encode(), where)


def reloading() -> None:
    """Tell the manager that what was configured is read anew; `READY=1` has to follow."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
