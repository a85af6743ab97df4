"""Types of `applykernel.pyx`."""

from logweir.store.state.lmdbkernel import Database, Transaction
from logweir.store.state.memtable import Memtable

def apply(
    txn: Transaction, database: Database, table: Memtable, too_long: int, mark: int
) -> tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]: ...
