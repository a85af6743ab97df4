"""What `draftkernel.pyx` offers to Python; its own text says what each does."""

from types import NotImplementedType
from typing import Any

from logweir.store.engine.conditionkernel import Computer
from logweir.store.engine.executing import Answer
from logweir.store.engine.statementkernel import Executor
from logweir.store.schema.definition import SpaceDef
from logweir.store.state.layerkernel import Space

class Drafts:
    rows: list[tuple[int, bytes, SpaceDef | None]]
    size_bytes: int
    touched: bool
    def __init__(self, executor: Executor, most_bytes: int) -> None: ...
    def add(self, kind: int, body: bytes, definition: SpaceDef) -> None: ...
    def make(
        self, space: Space, kind: int, first: Any, ops: Any, index: int
    ) -> tuple[Any, ...] | NotImplementedType | None: ...
    def execute(
        self,
        space: Space,
        kind: int,
        first: bytes,
        ops: bytes | None,
        index: int,
        base: int,
    ) -> tuple[bytes | None, bytes | None] | NotImplementedType: ...
    def compute(
        self, space: Space, given: bytes, computer: Computer, how: int, number: int
    ) -> Answer | NotImplementedType: ...
