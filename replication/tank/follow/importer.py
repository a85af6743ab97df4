"""Importing a Tank broker's data folder into a store.

Every topic becomes a topic here, with its configuration and every number it had; what the folder
holds damaged is reported and noted as a gap. Going on after an interruption, or importing again
after the broker wrote more, takes only what is new: how far each partition was read is written with
its messages.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from logweir.errors import ConfigError
from logweir.limits import GROUP_BYTES
from logweir.replication.tank.follow.cursor import ReceivedBundle
from logweir.replication.tank.follow.folder import (
    FolderProblem,
    PartitionFolder,
    TopicFolder,
    read_folder,
)
from logweir.replication.tank.follow.ingest import Batch, Intake
from logweir.replication.topic.config import parse_config, widest_config
from logweir.store import Log


@dataclass(slots=True)
class ImportedPartition:
    """What came of one partition. `first`, `last`: numbers now read, 0 if none."""

    topic: str
    partition: int
    bundles: int = 0
    messages: int = 0
    first: int = 0
    last: int = 0
    problems: list[FolderProblem] = field(default_factory=list)


def import_folder(log: Log, base: Path, *, topics: Collection[str] = ()) -> list[ImportedPartition]:
    """Take the topics of the folder, all or those named.

    A topic whose folder cannot be is left out, with a problem. Raises `CorruptFile` for a folder
    without topics, `ConfigError` for a topic that is not there, `SourceStopped` if a topic of that
    name holds other messages already.
    """
    found = {topic.name: topic for topic in read_folder(base)}
    for name in topics:
        if name not in found:
            raise ConfigError(
                "topic", f"{name!r} is not in {base}", hint=f"there are {list(found)}"
            )
    intake = Intake(log, f"file://{base.resolve()}")
    out = []
    for name, topic in found.items():
        if topics and name not in topics:
            continue
        if topic.problem:
            hole = FolderProblem("layout", topic.path, 0, 0, None, None, topic.problem)
            out.append(ImportedPartition(name, 0, problems=[hole]))
            continue
        config, problem = _config(topic)
        intake.topic(name, len(topic.partitions), config)
        for partition in topic.partitions:
            out.append(_import_partition(intake, name, partition))
        if problem:
            path = topic.path / "config"
            out[-1].problems.append(FolderProblem("config", path, 0, 0, None, None, problem))
    return out


def _config(topic: TopicFolder) -> tuple[str, str]:
    """The topic's configuration as it is taken over, and what is not; "" for nothing."""
    own = [partition.config for partition in topic.partitions if partition.config]
    try:
        parse_config(topic.config or "")
        config = widest_config(topic.config or "", own)
    except ConfigError as error:
        return "", f"the topic's configuration was not taken: {error}"
    if not own:
        return config, ""
    told = "a partition has a configuration of its own, here a topic has one: it was taken, each"
    return config, f"{told} limit as wide as its partitions have it"


def _import_partition(intake: Intake, topic: str, folder: PartitionFolder) -> ImportedPartition:
    result = ImportedPartition(topic, folder.partition)
    wanted = intake.next_number(topic, folder.partition)
    bundles: list[ReceivedBundle] = []
    gaps: list[tuple[int, int, str]] = []
    size = 0
    last = wanted - 1

    def report(problem: FolderProblem) -> None:
        result.problems.append(problem)
        if problem.first is not None and problem.last is not None and problem.last >= wanted:
            gaps.append((problem.first, problem.last, f"{problem.kind}: {problem.message}"))

    def flush() -> None:
        nonlocal size, wanted
        if bundles or gaps:
            batch = Batch(topic, folder.partition, wanted, last + 1, tuple(bundles), list(gaps))
            result.messages += intake.store([batch])
            bundles.clear()
            gaps.clear()
            wanted = last + 1
            size = 0

    for bundle in folder.bundles(report):
        if bundle.last < wanted:
            continue
        bundles.append(bundle)
        result.bundles += 1
        result.first = result.first or bundle.first
        result.last = last = bundle.last
        size += len(bundle.data)
        if size >= GROUP_BYTES // 2:
            flush()
    flush()
    return result
