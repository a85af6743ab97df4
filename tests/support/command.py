"""The command `logweir` for shells, run in a copy of what has imported it: see `support.nursery`.

Written into a folder of PATH, beside what it has to know. Where the socket of the nursery is not
inherited, the program itself runs.
"""

import _socket
import array
import json
import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Ask for the program with these words, pass signals on, and end as it does."""
    with open(f"{__file__}.json", encoding="utf-8") as file:
        place, inode, code, program = json.load(file)
    ends = signal.SIGTERM, signal.SIGINT
    told, tell = os.pipe()
    asked = {"code": code, "words": sys.argv[1:], "folder": os.getcwd(), "tells": True}
    asked["environment"] = dict(os.environ)
    number = 0
    with suppress(OSError):
        number = os.fstat(place).st_ino
    if number != inode:
        os.execv(program, [program, *sys.argv[1:]])
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    rights = _socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", (0, 1, 2, tell))
    _socket.socket(fileno=place).sendmsg([json.dumps(asked).encode()], [rights])
    for one in (0, 1, 2, tell):
        os.close(one)
    said = b""
    while not said.endswith(b"\n"):
        said += os.read(told, 1) or b"0\n"  # there is no nursery any more
    pid = int(said)
    for one in ends:
        signal.signal(one, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
    status = int(os.read(told, 20) or b"1")
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    main()
