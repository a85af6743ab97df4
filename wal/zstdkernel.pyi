from array import array

def unpack(payload: bytes | bytearray | memoryview, limit: int, /) -> bytes | None: ...
def odd(
    window: bytes,
    table: array[int],
    stride: int,
    first: int,
    last: int,
    limit: int,
    wanted: bytes,
    /,
) -> int: ...
def holds(data: bytes, wanted: bytes, /) -> bool: ...
