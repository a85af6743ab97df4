"""Whether the compiled kernels of a checkout are those of its sources.

`setup.py` leaves word of what it compiled where the sources stand beside it; an installed package
has no such record, and nothing to compare.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

__all__ = ["KERNELS", "RECORD", "TRANSLATED", "check_kernels", "digests"]

RECORD = "build/kernels.json"
TRANSLATED = "build/c"
"""Where `setup.py` has Cython put the C of kernels."""

KERNELS = {
    "logweir.wal.kernel": "wal/kernel.py",
    "logweir.wal.fillerkernel": "wal/fillerkernel.py",
    "logweir.wal.orderkernel": "wal/orderkernel.py",
    "logweir.wal.crckernel": "wal/crckernel.pyx",
    "logweir.wal.zstdkernel": "wal/zstdkernel.pyx",
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
    "logweir.store.state.basekernel": "store/state/basekernel.pyx",
    "logweir.store.engine.tuplekernel": "store/engine/tuplekernel.pyx",
    "logweir.store.engine.statementkernel": "store/engine/statementkernel.pyx",
    "logweir.store.engine.draftkernel": "store/engine/draftkernel.pyx",
    "logweir.store.commit.rowkernel": "store/commit/rowkernel.pyx",
    "logweir.store.state.viewers": "store/state/viewers.py",
    "logweir.store.commit.rows": "store/commit/rows.py",
    "logweir.store.commit.group": "store/commit/group.py",
    "logweir.store.commit.failing": "store/commit/failing.py",
    "logweir.store.commit.ahead": "store/commit/ahead.py",
    "logweir.store.commit.queue": "store/commit/queue.py",
    "logweir.store.commit.committer": "store/commit/committer.py",
    "logweir.store.engine.selectkernel": "store/engine/selectkernel.pyx",
    "logweir.store.state.pagekernel": "store/state/pagekernel.py",
    "logweir.pipeline.kernel": "pipeline/kernel.py",
    "logweir.pipeline.jsonkernel": "pipeline/jsonkernel.py",
    "logweir.pipeline.typedkernel": "pipeline/typedkernel.py",
    "logweir.replication.portkernel": "replication/portkernel.py",
    "logweir.replication.bucket.kernel": "replication/bucket/kernel.py",
    "logweir.replication.bucket.itemkernel": "replication/bucket/itemkernel.pyx",
    "logweir.replication.bucket.lookkernel": "replication/bucket/lookkernel.pyx",
    "logweir.replication.stream.kernel": "replication/stream/kernel.py",
    "logweir.replication.iproto.wire.kernel": "replication/iproto/wire/kernel.py",
    "logweir.replication.iproto.wire.readselectkernel": (
        "replication/iproto/wire/readselectkernel.pyx"
    ),
    "logweir.replication.topic.kernel": "replication/topic/kernel.py",
    "logweir.replication.synapse.wire.kernel": "replication/synapse/wire/kernel.py",
    "logweir.replication.synapse.wire.linekernel": "replication/synapse/wire/linekernel.py",
    "logweir.replication.greenstack.wire.kernel": "replication/greenstack/wire/kernel.py",
    "logweir.replication.greenstack.wire.readgetkernel": (
        "replication/greenstack/wire/readgetkernel.pyx"
    ),
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
}
"""What is compiled where it can be: names of modules, and their sources."""


def digests(root: Path, sources: dict[str, str]) -> dict[str, list[str]]:
    """Of each kernel its source and the digest of that and of all types that kernels share."""
    types = b"".join(path.read_bytes() for path in _types(root))
    return {
        name: [source, hashlib.sha256((root / source).read_bytes() + types).hexdigest()]
        for name, source in sources.items()
    }


def _types(root: Path) -> Iterable[Path]:
    rooms = ("wal", "store/*", "replication", "replication/*", "replication/*/*", "pipeline")
    return sorted(path for room in rooms for path in root.glob(f"{room}/*.px[di]"))


def check_kernels(root: Path) -> None:
    """Raises ImportError where a kernel was compiled from another source than the one that is
    there: it would do what the source did then, or fail anywhere."""
    try:
        told = json.loads((root / RECORD).read_bytes())
        now = digests(root, {name: source for name, (source, _) in told.items()})
    except (OSError, ValueError):
        return
    stale = [
        name
        for name, (source, _) in told.items()
        if now[name] != told[name] and [*root.glob(f"{source.partition('.')[0]}.*.so")]
    ]
    if stale:
        raise ImportError(
            f"compiled from other sources than those that are here: {', '.join(stale)}; "
            "`pip install -e .` compiles them again, and so do tools/run and tools/test"
        )
