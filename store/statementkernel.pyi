"""What `statementkernel.pyx` offers to Python; its own text says what each does."""

from array import array
from collections.abc import Callable

from logweir.errors import RequestError
from logweir.store.layerkernel import Space

COLUMNS: int
RESULTS: int

class Executor:
    def execute(
        self,
        data: bytes | bytearray | memoryview,
        columns: array[int],
        spaces: list[Space],
        reference: Callable[[int], tuple[bool, bytes | None, bytes | None, bytes | None]],
    ) -> tuple[array[int], bytes, dict[int, RequestError]]: ...
