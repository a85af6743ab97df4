"""What `statementkernel.pyx` offers to Python; its own text says what each does."""

from array import array
from collections.abc import Callable, Sequence

from logweir.errors import RequestError
from logweir.store.engine.conditionkernel import Computer
from logweir.store.engine.executing import Answer
from logweir.store.state.layerkernel import Space, Undo

COLUMNS: int
RESULTS: int

class Executor:
    def execute(
        self,
        data: bytes | bytearray | memoryview,
        columns: array[int],
        spaces: list[Space | None],
        undo: Undo,
        reference: Callable[[int], Answer],
        limit_bytes: int,
        computer: Computer | None = None,
    ) -> tuple[array[int], bytes, Sequence[int], dict[int, RequestError]]: ...
