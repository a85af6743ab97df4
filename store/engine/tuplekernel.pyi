"""What `tuplekernel.pyx` offers to Python."""

from typing import Any

def row(data: bytes) -> tuple[Any, ...]: ...
