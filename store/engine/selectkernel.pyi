"""What `selectkernel.pyx` offers to Python; its own text says what each does."""

from typing import Any

from logweir.store.state.layerkernel import Space

class Selector:
    given: int
    referred: bytes
    is_whole: bool
    @property
    def held_bytes(self) -> int: ...
    @property
    def refusal(self) -> tuple[int, int, int]: ...
    def select(
        self,
        space: Space,
        index_id: int,
        by: int,
        limit: int,
        offset: int,
        key: bytes,
        room_bytes: int,
    ) -> int: ...
    def entries(
        self,
        space: Space,
        index_id: int,
        start: bytes,
        stop: bytes | None,
        is_back: bool,
        limit: int,
        offset: int,
        room_bytes: int,
    ) -> int: ...
    def more(self, room_bytes: int) -> int: ...
    def tuples(self) -> list[bytes]: ...
    def block(self) -> tuple[int, bytes]: ...
    def rows(self) -> list[tuple[Any, ...]]: ...
    def count(self, space: Space, index_id: int) -> int: ...
