"""What `packkernel.pyx` offers to Python; its own text says what each does."""

from array import array
from typing import Any

def pack_rows(tuples: list[Any]) -> tuple[bytes, array[int]]: ...
