"""What `rowkernel.pyx` offers to Python; its own text says what it does."""

from array import array
from collections.abc import Callable

from logweir.errors import RequestError
from logweir.store.engine.statementkernel import Executor
from logweir.store.schema.definition import SpaceDef
from logweir.store.state.layerkernel import Space, Undo

def encode_rows(
    columns: array[int],
    results: array[int],
    source: bytes,
    replica_id: int,
    group_id: int,
    lsn: int,
    tsn: int,
    is_open: bool,
    timestamp_bits: int,
    target_bytes: int,
) -> tuple[list[bytes], int]: ...
def encode_transaction(
    drafts: list[tuple[int, bytes, SpaceDef | None]],
    lsns: dict[int, int],
    replica_id: int,
    timestamp_bits: int,
) -> tuple[bytes, bool]: ...
def apply_rows(
    executor: Executor,
    data: bytes,
    table: memoryview,
    capacity: int,
    row: int,
    last: int,
    undo: Undo,
    find: Callable[[int], Space | None],
    refer: Callable[[int], object],
) -> tuple[int, int, RequestError | None, int, int, int] | None: ...
