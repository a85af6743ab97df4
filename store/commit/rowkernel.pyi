"""What `rowkernel.pyx` offers to Python; its own text says what it does."""

from array import array

def encode_rows(
    columns: array[int],
    results: array[int],
    source: bytes,
    replica_id: int,
    group_id: int,
    lsn: int,
    tsn: int,
    is_open: bool,
    timestamp_bits: int,
    target_bytes: int,
) -> tuple[list[bytes], int]: ...
