"""What `statementkernel.pyx` offers to Python; its own text says what each does."""

from array import array
from collections.abc import Callable, Sequence

from logweir.errors import RequestError
from logweir.store.layerkernel import Space, Undo

COLUMNS: int
RESULTS: int

class Executor:
    def execute(
        self,
        data: bytes | bytearray | memoryview,
        columns: array[int],
        spaces: list[Space | None],
        undo: Undo,
        reference: Callable[[int], tuple[bool, bytes | None, bytes | None, bytes | None]],
        limit_bytes: int,
    ) -> tuple[array[int], bytes, Sequence[int], dict[int, RequestError]]: ...

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
