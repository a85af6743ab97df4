"""What is asked of a protocol whose requests are about items, to execute them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from logweir.replication.link import Link

if TYPE_CHECKING:
    from array import array

R_co = TypeVar("R_co", covariant=True)

Numbers: TypeAlias = "array[int]"
Said = tuple[int, bytes]
"""The place after some requests, and the answers to them."""

RUN_MAX: Final = 2048
"""More are divided, so that the first answers are on their way while others are made."""


class Requests(Protocol):
    """Requests of one run, `count` of them, between places that rise from `start` to `stop`."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def given_bytes(self) -> int:
        """Room for what all their statements give."""

    def statements(
        self, numbers: Numbers, most: int, states: bytearray, given: bytearray, columns: Numbers
    ) -> int:
        """Make statements of `most` requests at most. Returns how it ended: `WHOLE`, before one of
        a vbucket whose state is not known, without room, or before one that is odd.

        `numbers`: the place of the next request; bytes used of `given`; statements made so far; the
        time, in whole Unix seconds. `states`: see `Bucket.known_states`. `columns`: zeros after
        the statements that there are.
        """

    def answers(
        self, at: int, reached: int, first: int, results: Numbers, made: bytes, lsn: int
    ) -> list[Said]:
        """The answers to the requests from `at` to `reached` whose statements, from number `first`
        on, were executed. `made`: the bytes in which `results` point; `lsn`: of the last row before
        theirs.
        """

    def name(self, at: int) -> tuple[bytes, int]:
        """The key and the vbucket of the item that the request at `at` is about."""


class Joined(Requests, Protocol[R_co]):
    """Several runs as one."""

    def number(self, at: int) -> int:
        """Of which of them the request at `at` is."""

    def request(self, at: int) -> tuple[R_co, int]:
        """The one at `at` by itself, and the place after it."""

    def behind(self, at: int) -> Sequence[R_co]:
        """The rest of its run, from `at` on."""


class Asker(Protocol):
    """A connection whose requests are a part."""

    @property
    def link(self) -> Link: ...

    def finish(self, part: Any, error: BaseException | None) -> None:
        """What was asked for is durable, is left, or failed."""
