"""Children made by `fork`, for tests of what they may do to their parent."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Final

CHILD_SECONDS: Final = 60


def in_child(call: Callable[[], object]) -> str:
    """What `call` returned in a child of this process, as text, or the error it raised there.

    The child ends at once then, without leaving anything in order. One that hangs is killed: raises
    `AssertionError` then, as where it ends by itself.
    """
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        text = "nothing"
        try:
            text = str(call())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(into, text.encode()[:60_000])
            os._exit(0)
    os.close(into)
    try:
        ready, _, _ = select.select([out], [], [], CHILD_SECONDS)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        text = b"".join(iter(lambda: os.read(out, 65536), b"")).decode()
    finally:
        os.close(out)
        _, status = os.waitpid(pid, 0)
    assert ready, "the child hangs"
    assert status == 0, f"the child ended with {status}"
    return text


def error_of(call: Callable[[], object]) -> str:
    """The name of the error that `call` raises, or what it returned."""
    try:
        return f"no error but {call()!r}"
    except BaseException as error:
        return type(error).__name__
