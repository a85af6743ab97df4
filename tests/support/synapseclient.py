"""A follower of Synapse's line protocol by hand, as with `nc`."""

from __future__ import annotations

import socket
from typing import Self


class Client:
    """One connection to a listener on loopback, whose greeting it has read."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        self._file = self._socket.makefile("rb")
        self._socket.settimeout(30)
        try:
            self.server = self._file.readline().decode().rstrip("\n")
            assert self._file.readline().startswith(b"PING ")
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        self._file.close()
        self._socket.close()

    def shut(self) -> None:
        """End the connection, also for a thread that reads."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, *lines: str) -> None:
        """Lines."""
        self._socket.sendall("".join(line + "\n" for line in lines).encode())

    def line(self) -> str:
        """The next line but for PING; "" at the end of the connection."""
        for _ in range(8):  # a PING comes every five seconds: nothing else for so long is a failure
            line = self._file.readline().decode().rstrip("\n")
            if not line.startswith("PING "):
                return line
        raise AssertionError("nothing but PING for 40 seconds")

    def until(self, start: str) -> list[str]:
        """The next lines up to one that begins so, which is the last."""
        found = [self.line()]
        while not found[-1].startswith(start):
            assert found[-1], f"the connection ended before {start!r}"
            found.append(self.line())
        return found
