"""What `conditionkernel.pyx` offers to Python; its own text says what each does."""

class Computer:
    obstacle: bytes | None
    def refer(
        self, how: int, number: int, given: bytes, old: bytes | None
    ) -> tuple[int, bytes | None, tuple[int, int, int]]: ...
