"""What `updatekernel.pyx` offers to Python; its own text says what each does."""

from logweir.store.schema.plankernel import Plan

class Updater:
    def changed(
        self, plan: Plan, old: bytes, ops: bytes, base: int, key: bytes, is_upsert: bool
    ) -> bytes | None: ...
    def knows(self, plan: Plan, ops: bytes, base: int) -> bool: ...
