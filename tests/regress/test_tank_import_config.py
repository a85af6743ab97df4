"""Import dropped all of a topic's limits as soon as one partition had a configuration of its own:
everything was kept for ever."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.tankserving import FOLDER

import logweir
from logweir.replication.tank.follow.importer import import_folder
from logweir.replication.topic.spaces import topics_of


@pytest.mark.parametrize(
    ("own", "segments", "segment_bytes"),
    [
        ("log.segment.bytes=600\nlog.index.interval.bytes=128", 4, 4096),
        ("log.segment.bytes=8k", 4, 8192),
        ("retention.segments.count=2", 4, 4096),
        ("retention.segments.count=7", 7, 4096),
        ("retention.segments.count=0", 0, 4096),
        ("log.retention.secs=1", 4, 4096),
    ],
)
def test_import_keeps_a_topics_limits_where_a_partition_has_its_own(
    tmp_path: Path, own: str, segments: int, segment_bytes: int
) -> None:
    """The topic's, but nothing that a partition would have kept goes; what is left out is told."""
    shutil.copytree(FOLDER / "logs", tmp_path / "data" / "logs")
    (tmp_path / "data" / "logs" / "0" / "config").write_text(own)
    with logweir.open(tmp_path / "store") as log:
        found = import_folder(log, tmp_path / "data")
        config = topics_of(log)["logs"].config
    assert (config.segments, config.segment_bytes) == (segments, segment_bytes)
    assert config.retention_seconds == 0
    (problem,) = [problem for each in found for problem in each.problems]
    assert "it was taken, each limit as wide as its partitions have it" in problem.message
