"""Ports for programs that are told theirs, and for servers that come back on the same one."""

from __future__ import annotations

import itertools
import os
import random
import socket

_FIRST, _END = 10_000, 32_000
_numbers = itertools.count(random.Random(os.getpid()).randrange(_END))


def free_port() -> int:
    """A port of loopback on which nobody listens, another one each time.

    It is none of those that systems give to connections (from 32768 on), as `bind` with port 0
    does: one of these may be that of a connection before the program listens that was told it.
    """
    for number in _numbers:
        port = _FIRST + number % (_END - _FIRST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the numbers ended")
