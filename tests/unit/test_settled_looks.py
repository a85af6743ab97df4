"""Whether something says that a space is synchronous: every place of a log is looked at."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Barrier

import pytest
from support.logs import insert, write_log

from logweir.pipeline.options import ScanOptions
from logweir.pipeline.plan import plan
from logweir.pipeline.storage import UrlFileSystem
from logweir.store.engine import settling
from logweir.store.engine.settling import SEARCH_BYTES, is_said, may_wait
from logweir.wal import walk
from logweir.wal.block import FIXHEADER_BYTES
from logweir.wal.damage import Damage
from logweir.wal.filesystem import OS, ReadFile
from logweir.wal.reader import WalReader
from logweir.wal.walk import Walked, walk_blocks

SAYS = {"is_sync": True}
PLAIN = [insert(600, [1, "x"])]
LARGE = [insert(600, [2, "text " * 2000])]


def definition(room: int) -> list[tuple[int, bytes]]:
    """A row that says it, in a block that is packed, letter by letter, where it is large."""
    letters = "".join(Random(1).choices("is_sync", k=room))
    return [insert(280, [700, 1, letters.replace("is", "si"), "memtx", 0, SAYS])]


def _whole(log: Path) -> None:
    pass


def _flip(log: Path, at: int) -> None:
    data = bytearray(log.read_bytes())
    data[at] ^= 1
    log.write_bytes(data)


def _offsets(log: Path) -> list[int]:
    with WalReader(log) as reader:
        return [block.offset for block in reader.blocks() if not isinstance(block, Damage)]


def _header(log: Path) -> None:
    _flip(log, _offsets(log)[1] + 1)


def _payload(log: Path) -> None:
    _flip(log, _offsets(log)[1] + FIXHEADER_BYTES + 20)


@pytest.mark.parametrize("harm", [_whole, _header, _payload])
@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("room", [0, 20000])
def test_each_place_of_a_log_is_looked_at(
    room: int, close: bool, harm: Callable[[Path], None], tmp_path: Path
) -> None:
    """In plain and packed blocks, in front of an end or none, and behind a damaged block."""
    said = [PLAIN, LARGE, PLAIN, definition(room)]
    for name, blocks, wanted in (("not", [PLAIN, LARGE, PLAIN], False), ("said", said, True)):
        folder = tmp_path / name
        folder.mkdir()
        write_log(folder, blocks, close=close)
        (log,) = folder.glob("*.xlog")
        assert (b"is_sync" in log.read_bytes()) is (wanted and not room)
        harm(log)
        assert may_wait(folder, OS) is wanted


def test_many_searches_at_once_have_bounded_memory(tmp_path: Path) -> None:
    """Sixteen logs of an object store are searched at a time: none is asked for more than its
    share, and all of each is looked at."""
    from pyarrow import fs

    asked: list[int] = []

    class Spying(UrlFileSystem):
        def open_read(self, path: Path) -> ReadFile:
            file = super().open_read(path)
            read = file.read

            def spying(count: int, offset: int) -> bytes:
                asked.append(count)
                return read(count, offset)

            file.read = spying  # type: ignore[method-assign]
            return file

    blocks = [[insert(600, [n, Random(n).randbytes(60_000)])] for n in range(100)]
    write_log(tmp_path, [*blocks, definition(0)])
    assert may_wait(tmp_path, Spying(fs.LocalFileSystem()))
    assert sum(asked) > 100 * 60_000
    assert max(asked) <= SEARCH_BYTES


def test_logs_are_searched_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many large logs of a plan at once as there are processors, one after the other where
    there is one; and what one of them says is found."""
    large = [insert(600, [1, Random(1).randbytes(SEARCH_BYTES)])]
    for name, last in (("not", large), ("said", [*definition(0), *large])):
        folder = tmp_path / name
        folder.mkdir()
        end = write_log(folder, [large])
        end = write_log(folder, [large], start=end)
        write_log(folder, [last], start=end)
    options = ScanOptions(paths=(str(tmp_path / "not"),))
    both = Barrier(2)  # of two that search, neither goes on before the other has begun
    searched: list[str] = []

    def meeting(reader: WalReader) -> bool:
        searched.append(reader.path.name)
        if len(searched) <= 2:
            both.wait(30)
        return is_said(reader)

    monkeypatch.setattr(settling, "is_said", meeting)
    monkeypatch.setattr(settling, "processors", lambda: 2)
    assert not any(source.settled.limit for source in plan(options).sources)
    assert len(searched) == 3
    monkeypatch.setattr(settling, "processors", lambda: 1)
    assert may_wait(tmp_path / "said", OS)
    assert len(searched) == 6


@pytest.mark.parametrize("compiled", [True, False])
def test_bytes_are_found_at_every_place(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the begin, the end and between; not what only begins and ends alike, or is cut off."""
    if not compiled:
        monkeypatch.setattr(walk, "COMPILED", False)
    for size in range(7, 150):
        for at in range(size - 6):
            text = b"i" * at + b"is_sync" + b"c" * (size - at - 7)
            window = Walked(0, text, array("Q", (0,)), 1, 0)
            assert window.holds(b"is_sync")
            assert not window.holds(b"is_zync")
            assert not window._replace(window=text[: at + 6]).holds(b"is_sync")
    assert not Walked(0, b"", array("Q", (0,)), 1, 0).holds(b"is_sync")


def test_blocks_that_have_to_be_looked_at_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compressed ones that are damaged, or say what is wanted; interpreted, all compressed ones."""
    said = [PLAIN, LARGE, definition(20000), LARGE, PLAIN, LARGE, definition(0)]
    write_log(tmp_path, said)
    (log,) = tmp_path.glob("*.xlog")
    at = _offsets(log)
    _flip(log, at[3] + FIXHEADER_BYTES)  # no zstd frame begins so

    def told(wanted: bytes, last: int) -> list[int]:
        file = OS.open_read(log)
        try:
            (walked,) = walk_blocks(file, at[0], log.stat().st_size, whole=True)
            assert walked.blocks == len(said)
            return list(walked.odd(last, wanted))
        finally:
            file.close()

    if walk.COMPILED:
        assert told(b"", 7) == [3]
        assert told(b"is_sync", 7) == [2, 3]
        assert told(b"is_sync", 3) == [2]
        assert told(b"is_sync", 2) == []
        with pytest.raises(IndexError):
            walk.odd(b"short", array("Q", (0, 0, 9, 9, 0, 0, 1, 1)), 2, 0, 1, 99, b"")
        with pytest.raises(IndexError):
            walk.odd(b"short", array("Q", (0, 0)), 2, 0, 1, 99, b"")
    monkeypatch.setattr(walk, "COMPILED", False)
    assert told(b"is_sync", 7) == [1, 2, 3, 5]
