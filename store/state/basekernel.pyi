"""Types of `basekernel.pyx`; its own text says what it does."""

from logweir.store.state.layerkernel import Base
from logweir.store.state.tree import Tree

class StateBase(Base):
    def __init__(self, tree: Tree, too_long: int) -> None: ...
