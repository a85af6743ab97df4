"""What `mergekernel.pyx` offers to Python; `store.state.memtable` says what each does."""

from collections.abc import Iterable, Iterator, Sequence

from logweir.store.state.memtablekernel import Memtable

def merged_ascending(
    tables: Sequence[Memtable], start: bytes, base: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]: ...
def merged_descending(
    tables: Sequence[Memtable], stop: bytes | None, base: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]: ...
