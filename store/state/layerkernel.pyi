"""What `layerkernel.pyx` offers to Python; its own text says what each does."""

from collections.abc import Iterator, Sequence

from logweir.store.schema.plankernel import Plan
from logweir.store.state.memtable import Memtable

class Undo:
    is_early: bool
    def set(self, table: Memtable, key: bytes, value: bytes) -> None: ...
    def mark(self) -> int: ...
    def rollback(self, mark: int) -> None: ...
    def forget(self) -> None: ...

class Base:
    def get(self, key: bytes) -> bytes | None: ...
    def last_key(self) -> bytes | None: ...
    def count(self) -> int: ...
    def scan(
        self, start: bytes, stop: bytes | None, reverse: bool
    ) -> Iterator[tuple[bytes, bytes]]: ...

class Space:
    plan: Plan
    def __init__(
        self,
        plan: Plan,
        tables: list[Sequence[Memtable]],
        bases: list[Base],
        undo: Undo | None,
        early: Sequence[int] = (),
    ) -> None: ...
