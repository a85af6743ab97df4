"""Kernels as plain Python, to compare the compiled ones with."""

from __future__ import annotations

from logweir.replication.iproto.wire import kernel as iproto
from logweir.replication.topic import kernel as topic
from logweir.store.schema.bulk import interpreted
from logweir.wal import kernel as wal

PLAIN_WAL = interpreted(wal)
PLAIN_IPROTO = interpreted(iproto)
PLAIN_TOPIC = interpreted(topic)
