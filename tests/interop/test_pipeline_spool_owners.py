"""Spools whose follower or driver dies, and spools that another process has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import logweir
from interop.tapserver import Peer, TapServer
from interop.test_pipeline_spools import SCHEMES, batch, bucket_server, read_all, stream_of, upto
from logweir.errors import (
    DirectoryLocked,
)

KILLED = """
import os, sys
from pyspark.sql.streaming.datasource import ReadAllAvailable
from logweir.pipeline.options import ScanOptions
from logweir.pipeline.spoolsources import SpoolStream

stream = SpoolStream(ScanOptions.parse({"url": sys.argv[1], "spool": sys.argv[2]}))
start = stream.initialOffset()
while True:
    stream.latestOffset(start, ReadAllAvailable())
"""


@pytest.mark.kill
@pytest.mark.parametrize("place", ["after_sync_before_publish@4", "after_publish@4"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_follower_that_is_killed_doubles_and_loses_nothing(
    tmp_path: Path, scheme: str, place: str
) -> None:
    """Within a commit of the spool, with no offset told: the next process has every row once."""
    name, _, count = place.partition("@")
    with bucket_server(tmp_path / "up", scheme, 40) as (_, url):
        ran = subprocess.run(
            [sys.executable, "-c", KILLED, url, str(tmp_path / "spool")],
            env={**os.environ, "LOGWEIR_FAILPOINTS": f"store.{name}=kill@{count}"},
            capture_output=True,
            timeout=20,
        )
        assert ran.returncode == -signal.SIGKILL, ran.stderr[-2000:]
        stream = stream_of(url, tmp_path / "spool", spaces="b")
        start = stream.initialOffset()
        end = upto(stream, start, lambda rows: len(rows) >= 40)
        stream.stop()
        rows = read_all(stream, stream.partitions(start, end))
        assert sorted(row[0] for _, row in rows) == sorted(b"k%d" % n for n in range(40))


def test_a_spool_that_another_process_follows_is_named(tmp_path: Path) -> None:
    """After a while, since a query that was stopped may still be at it."""
    with (
        bucket_server(tmp_path / "up", "tap", 3) as (_, url),
        logweir.open(tmp_path / "spool"),
        pytest.raises(DirectoryLocked, match=f"in use by .*{os.getpid()}"),
    ):
        batch(url, spool=tmp_path / "spool")


def test_a_spool_that_is_let_go_in_time_is_taken(tmp_path: Path) -> None:
    """The one who has it goes while the next one waits."""
    log = logweir.open(tmp_path / "spool")
    with bucket_server(tmp_path / "up", "tap", 3) as (_, url):
        timer = threading.Timer(0.3, log.close)
        timer.start()
        assert len(batch(url, spool=tmp_path / "spool", spaces="b")) == 3
        timer.join()


ORPHAN = """
import os, sys
from logweir.errors import SourceStopped
from logweir.pipeline.spool import taken
from logweir.replication.protocols import parse_url

if os.fork():
    with open(sys.argv[3]) as told:
        told.read(1)
    os._exit(0)
try:
    with taken(parse_url(sys.argv[1]), sys.argv[2]):
        pass
except SourceStopped as error:
    print(error, flush=True)
"""


def test_nothing_is_followed_for_a_driver_that_is_gone(tmp_path: Path) -> None:
    """A process that waits for an upstream which says nothing ends when its parent does."""
    fifo = tmp_path / "connected"
    os.mkfifo(fifo)

    def silent(peer: Peer) -> None:
        peer.connect()
        with open(fifo, "w") as told:
            told.write("x")
        peer.receive()

    with TapServer(silent) as upstream:
        url = f"tap://127.0.0.1:{upstream.port}/b"
        words = [sys.executable, "-c", ORPHAN, url, str(tmp_path / "spool"), str(fifo)]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "who wanted its rows is gone" in ran.stdout
