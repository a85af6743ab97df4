"""A call that was begun may be done, and another thread give the next one, before the thread that
began it is awake again. The syncer's thread ended then, and everybody waited for it."""

from __future__ import annotations

import threading
from typing import Any

from logweir.store.syncer import Syncer


class SlowToWake:
    """A lock whose takers come late. `is_awake`: when they come."""

    def __init__(self, lock: Any) -> None:
        self.is_awake = threading.Event()
        self._lock = lock

    def acquire(self) -> bool:
        """As of a lock."""
        assert self.is_awake.wait(10)
        return bool(self._lock.acquire())

    def release(self) -> None:
        """As of a lock."""
        self._lock.release()


def test_the_next_call_waits_until_the_one_before_it_was_seen_to_begin() -> None:
    """Both are made, and the thread lives."""
    syncer = Syncer()
    slow: Any = SlowToWake(syncer._begun)
    syncer._begun = slow
    first_done, second_done = threading.Event(), threading.Event()
    one = threading.Thread(target=syncer.hand, args=(first_done.set,), daemon=True)
    one.start()
    assert first_done.wait(10)

    def second() -> None:
        syncer.start(second_done.set)
        syncer.wait()

    other = threading.Thread(target=second, daemon=True)
    other.start()
    second_done.wait(0.2)  # it would be tried by now
    slow.is_awake.set()
    for thread in (one, other):
        thread.join(10)
        assert not thread.is_alive()
    assert second_done.is_set()
    syncer.close()
