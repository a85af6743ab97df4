"""What `selectkernel.pyx` offers to Python; its own text says what each does."""

from array import array

from logweir.store.layerkernel import Space

SELECT_COLUMNS: int
SELECT_RESULTS: int
GET: int

class Selector:
    def select(
        self, data: bytes | bytearray | memoryview, columns: array[int], spaces: list[Space]
    ) -> tuple[array[int], bytes]: ...
