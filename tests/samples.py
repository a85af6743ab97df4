"""The data folders in tests/data/tarantool and what the real program read from them.

The folders were written by Tarantool 2.6.0; README.md there says how, and what stands in
`expected.jsonl.xz`.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from logweir.wal.block import FIXHEADER_BYTES, decode_fixheader, decompress
from logweir.wal.meta import decode_meta
from logweir.wal.vclock import VClock

DATA: Final = Path(__file__).parent / "data" / "tarantool"

GOOD: Final = (
    "01-fresh",
    "02-spaces",
    "03-replicaset/instance-1",
    "03-replicaset/instance-2",
    "04-crashed",
)
"""Names of the samples that are whole."""

DAMAGED: Final = tuple(
    sorted(path.name for path in (DATA / "05-damaged").iterdir() if path.is_dir())
)
"""Names of the damaged cases, such as "a-truncated-in-payload"."""


class ExpectedBlock(NamedTuple):
    """One block, as an independent decoder saw it. `crc`: 8 hexadecimal digits."""

    offset: int
    kind: str
    stored_bytes: int
    raw_bytes: int
    crc: str
    rows: int


@dataclass
class ExpectedFile:
    """One file, as the real program's `xlog` module saw it.

    `rows`: type (its name), lsn, replica_id, group_id, timestamp, tsn (absolute) and commit, each
    where it is not absent, and `body`: space_id, index_base, `tuple_mp` and `key_mp` (hex of the
    exact bytes), `operations` as values. `error`: what the program said instead of reading it.
    """

    path: Path
    size: int = 0
    meta: list[str] = field(default_factory=list)
    eof: bool | None = None
    max_lsn: dict[str, int] | None = None
    error: str | None = None
    blocks: list[ExpectedBlock] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Sample:
    """A data folder. `summary`: of the running program; `spaces`: exact tuples in key order."""

    folder: Path
    summary: dict[str, Any] = field(default_factory=dict)
    files: list[ExpectedFile] = field(default_factory=list)
    spaces: dict[int, list[bytes]] = field(default_factory=dict)
    space_names: dict[int, str] = field(default_factory=dict)

    @property
    def vclock(self) -> VClock:
        """What the running program said just before it stopped."""
        return VClock({int(key): lsn for key, lsn in self.summary["vclock"].items()})

    def file(self, name: str) -> ExpectedFile:
        """One of its files."""
        return next(file for file in self.files if file.path.name == name)


@dataclass
class DamagedCase(Sample):
    """A damaged folder. `what`: what was done; `outcomes`: by force_recovery, what 2.6.0 did."""

    what: str = ""
    outcomes: dict[bool, dict[str, Any]] = field(default_factory=dict)
    module_rows: dict[str, dict[str, Any]] = field(default_factory=dict)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def _take(sample: Sample, line: dict[str, Any]) -> None:
    if "row" in line:
        sample.files[-1].rows.append(line["row"])
    elif "file" in line:
        path = sample.folder / line.pop("file")
        blocks = [ExpectedBlock(*block) for block in line.pop("blocks", [])]
        sample.files.append(ExpectedFile(path=path, blocks=blocks, **line))
    elif "space" in line:
        sample.spaces[line["space"]] = [bytes.fromhex(mp) for mp in line["tuples"]]
        sample.space_names[line["space"]] = line["name"]
    else:
        sample.summary = line["summary"]


@cache
def sample(name: str) -> Sample:
    """One of `GOOD`. It is shared: do not change it."""
    found = Sample(DATA / name)
    for line in _lines(found.folder / "expected.jsonl.xz"):
        _take(found, line)
    return found


@cache
def _damaged() -> dict[str, DamagedCase]:
    cases: dict[str, DamagedCase] = {}
    for line in _lines(DATA / "05-damaged" / "expected.jsonl.xz"):
        if "case" in line:
            about = line["case"]
            case = DamagedCase(
                DATA / "05-damaged" / about["case"],
                what=about["what"],
                outcomes={one["force_recovery"]: one for one in about["outcomes"]},
                module_rows=about["xlog_module_rows"],
            )
            cases[about["case"]] = case
        else:
            _take(case, line)
    return cases


def damaged(name: str) -> DamagedCase:
    """One of `DAMAGED`. It is shared: do not change it."""
    return _damaged()[name]


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Offset and rows of each block of a whole file, by the pure codecs alone."""
    data = path.read_bytes()
    _, at = decode_meta(data)
    while at + FIXHEADER_BYTES <= len(data):
        header = decode_fixheader(data[at : at + FIXHEADER_BYTES])
        start = at + FIXHEADER_BYTES
        payload = data[start : start + header.stored_bytes]
        yield at, payload if header.kind == "plain" else decompress(payload)
        at = start + header.stored_bytes


@cache
def good_blocks() -> list[bytes]:
    """The rows of every block of every whole sample."""
    return [rows for name in GOOD for file in sample(name).files for _, rows in blocks(file.path)]
