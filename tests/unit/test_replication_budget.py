"""What waits for its turn, and when its peer is read."""

from __future__ import annotations

from logweir.replication.budget import Unanswered


class Peer:
    """Whether a peer is read, as a link tells it."""

    def __init__(self) -> None:
        self.holds = 0

    def hold_reading(self) -> None:
        self.holds += 1

    def resume_reading(self) -> None:
        self.holds -= 1


def test_a_peer_is_read_again_when_half_of_the_limit_is_gone() -> None:
    """Above the limit it is held, once; told are both ends."""
    peer = Peer()
    told: list[bool] = []
    waiting = Unanswered(peer, 100, told.append)
    waiting.add(60)
    waiting.add(40)
    assert (peer.holds, told) == (0, [])
    waiting.add(1)
    waiting.add(500)
    assert (peer.holds, told, waiting.is_holding) == (1, [True], True)
    waiting.done(550)
    assert peer.holds == 1
    waiting.done(1)
    assert (peer.holds, told, waiting.size_bytes) == (0, [True, False], 50)
    waiting.set(101)
    waiting.set(51)
    assert peer.holds == 1
    waiting.set(0)
    assert (peer.holds, told) == (0, [True, False, True, False])
