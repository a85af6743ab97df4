"""Where compiled modules come from: one extension, `logweir.kernels`, has all of them.

A library of its own for each kernel would be a fifth more of them all, and what each links would
be looked for again. One that could not be compiled is not in it: its source runs, or, where it is
Cython alone, the plain module that does the same.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from os.path import exists
from types import ModuleType
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

SHARED: Final = "logweir.wal.sharedkernel"
"""What Cython adds to a kernel that takes buffers, once for all; Cython writes it."""

KERNELS: Final = {
    "logweir.wal.kernel": "wal/kernel.py",
    "logweir.wal.fillerkernel": "wal/fillerkernel.py",
    "logweir.wal.orderkernel": "wal/orderkernel.py",
    "logweir.wal.crckernel": "wal/crckernel.pyx",
    "logweir.wal.zstdkernel": "wal/zstdkernel.pyx",
    "logweir.wal.tail": "wal/tail.py",
    "logweir.store.schema.kernel": "store/schema/kernel.py",
    "logweir.store.schema.largekernel": "store/schema/largekernel.py",
    "logweir.store.state.memtablekernel": "store/state/memtablekernel.pyx",
    "logweir.store.state.lmdbkernel": "store/state/lmdbkernel.pyx",
    "logweir.store.state.applykernel": "store/state/applykernel.pyx",
    "logweir.store.state.mergekernel": "store/state/mergekernel.pyx",
    "logweir.store.schema.packkernel": "store/schema/packkernel.pyx",
    "logweir.store.engine.updatekernel": "store/engine/updatekernel.pyx",
    "logweir.store.schema.plankernel": "store/schema/plankernel.pyx",
    "logweir.store.state.layerkernel": "store/state/layerkernel.pyx",
    "logweir.store.engine.conditionkernel": "store/engine/conditionkernel.pyx",
    "logweir.store.state.stackkernel": "store/state/stackkernel.py",
    "logweir.store.state.stacked": "store/state/stacked.py",
    "logweir.store.state.basekernel": "store/state/basekernel.pyx",
    "logweir.store.engine.tuplekernel": "store/engine/tuplekernel.pyx",
    "logweir.store.engine.asking": "store/engine/asking.py",
    "logweir.store.engine.statementkernel": "store/engine/statementkernel.pyx",
    "logweir.store.engine.draftkernel": "store/engine/draftkernel.pyx",
    "logweir.store.commit.rowkernel": "store/commit/rowkernel.pyx",
    "logweir.store.state.viewers": "store/state/viewers.py",
    "logweir.store.commit.rows": "store/commit/rows.py",
    "logweir.store.commit.group": "store/commit/group.py",
    "logweir.store.commit.failing": "store/commit/failing.py",
    "logweir.store.commit.ahead": "store/commit/ahead.py",
    "logweir.store.commit.jobs": "store/commit/jobs.py",
    "logweir.store.commit.committer": "store/commit/committer.py",
    "logweir.store.engine.selectkernel": "store/engine/selectkernel.pyx",
    "logweir.store.state.pagekernel": "store/state/pagekernel.py",
    "logweir.pipeline.kernel": "pipeline/kernel.py",
    "logweir.pipeline.jsonkernel": "pipeline/jsonkernel.py",
    "logweir.pipeline.typedkernel": "pipeline/typedkernel.py",
    "logweir.replication.portkernel": "replication/portkernel.py",
    "logweir.replication.pollkernel": "replication/pollkernel.pyx",
    "logweir.replication.bucket.kernel": "replication/bucket/kernel.py",
    "logweir.replication.bucket.reads": "replication/bucket/reads.py",
    "logweir.replication.bucket.batch": "replication/bucket/batch.py",
    "logweir.replication.bucket.joint": "replication/bucket/joint.py",
    "logweir.replication.service.line": "replication/service/line.py",
    "logweir.replication.bucket.itemkernel": "replication/bucket/itemkernel.pyx",
    "logweir.replication.bucket.lookkernel": "replication/bucket/lookkernel.pyx",
    "logweir.replication.stream.kernel": "replication/stream/kernel.py",
    "logweir.replication.iproto.wire.kernel": "replication/iproto/wire/kernel.py",
    "logweir.replication.iproto.wire.readselectkernel": (
        "replication/iproto/wire/readselectkernel.pyx"
    ),
    "logweir.replication.iproto.wire.headkernel": "replication/iproto/wire/headkernel.py",
    "logweir.replication.iproto.wire.runs": "replication/iproto/wire/runs.py",
    "logweir.replication.iproto.serve.statements": "replication/iproto/serve/statements.py",
    "logweir.replication.iproto.serve.selects": "replication/iproto/serve/selects.py",
    "logweir.replication.topic.kernel": "replication/topic/kernel.py",
    "logweir.replication.synapse.wire.kernel": "replication/synapse/wire/kernel.py",
    "logweir.replication.synapse.wire.linekernel": "replication/synapse/wire/linekernel.py",
    "logweir.replication.greenstack.wire.kernel": "replication/greenstack/wire/kernel.py",
    "logweir.replication.greenstack.wire.readgetkernel": (
        "replication/greenstack/wire/readgetkernel.pyx"
    ),
    "logweir.replication.greenstack.serve.runs": "replication/greenstack/serve/runs.py",
    "logweir.replication.greenstack.wire.pushkernel": "replication/greenstack/wire/pushkernel.py",
    "logweir.replication.memcached.wire.kernel": "replication/memcached/wire/kernel.py",
    "logweir.replication.memcached.wire.readitemkernel": (
        "replication/memcached/wire/readitemkernel.pyx"
    ),
    "logweir.replication.memcached.wire.wordkernel": "replication/memcached/wire/wordkernel.py",
    "logweir.replication.memcached.wire.metakernel": "replication/memcached/wire/metakernel.py",
    "logweir.replication.memcached.wire.linekernel": "replication/memcached/wire/linekernel.py",
    "logweir.replication.memcached.wire.tellkernel": "replication/memcached/wire/tellkernel.py",
    "logweir.replication.memcached.wire.pushkernel": "replication/memcached/wire/pushkernel.py",
    "logweir.replication.memcached.serve.runs": "replication/memcached/serve/runs.py",
    "logweir.replication.memcached.serve.reads": "replication/memcached/serve/reads.py",
}
"""What is compiled where it can be: names of modules, and their sources."""


class Kernels:
    """Finds and loads them. `broken`: why the extension, which is there, cannot be loaded."""

    def __init__(self) -> None:
        self._extension: ModuleType | None = None
        self._has: frozenset[str] = frozenset((*KERNELS, SHARED))
        self.broken = ""

    def install(self) -> None:
        """Be asked before files are looked at, and after whoever wants to be the first. Once."""
        asked = sys.meta_path
        if self not in asked:
            asked.insert(asked.index(PathFinder) if PathFinder in asked else 0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As of any finder. An extension of its own beside a kernel's source counts instead."""
        del target
        if name not in self._has:
            return None
        own = name.rpartition(".")[2] + EXTENSION_SUFFIXES[0]
        if any(exists(f"{folder}/{own}") for folder in path or ()) or not self._loaded(name):
            return None
        assert self._extension is not None
        spec = ModuleSpec(name, cast("Loader", self), origin=self._extension.__file__)
        spec.has_location = True
        return spec

    def _loaded(self, name: str) -> bool:
        """Load the extension when the first kernel is wanted. Whether it has that one."""
        if self._extension is None:
            try:
                self._extension = import_module("logweir.kernels")
            except ImportError as error:
                self._has = frozenset()
                if not isinstance(error, ModuleNotFoundError):
                    self.broken = str(error)
            else:
                self._has = self._extension.names
        return name in self._has

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        assert self._extension is not None
        made: ModuleType = self._extension.create(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        assert self._extension is not None
        self._extension.execute(module)


FINDER: Final = Kernels()
"""The one of this process."""
