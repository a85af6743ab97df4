"""Types of `basekernel.pyx`; its own text says what it does."""

from logweir.store.state.layerkernel import Base
from logweir.store.state.lmdbkernel import Database, Transaction

class StateBase(Base):
    def __init__(
        self, txn: Transaction, database: Database, too_long: int, has_long: bool
    ) -> None: ...
