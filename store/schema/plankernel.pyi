"""What `plankernel.pyx` offers to Python; its own text says what each does."""

from array import array

from logweir.store.schema.definition import SpaceDef

class Plan:
    space_id: int
    source: SpaceDef
    index_ids: list[int]
    def __init__(
        self,
        space_id: int,
        source: SpaceDef,
        table: array[int],
        types: array[int],
        indexes: array[int],
        blob: bytes,
        bounds: array[int],
    ) -> None: ...
