"""Followers of one log: what they get, and what they share."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from logweir import limits
from logweir.errors import ChainGap, PositionUnavailable, WriteFailed
from logweir.replication.stream import hub as hub_module
from logweir.replication.stream.hub import Hub, Window
from logweir.wal.directory import scan_directory
from logweir.wal.follow import Follower
from logweir.wal.reader import Block
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import Row, encode_row

UUID = uuid.UUID("11111111-1111-4111-8111-111111111111")


class Log:
    """A log on disk that grows row by row."""

    def __init__(self, path: Path, start: VClock | None = None, max_bytes: int = 4096) -> None:
        self.path = path
        self.vclock = start or VClock()
        self.opened: list[Follower] = []
        self.writer = WalWriter(
            path, UUID, AppendPoint(self.vclock), options=WriterOptions(max_bytes=max_bytes)
        )

    def write(self, replica_id: int, count: int = 1, size: int = 10) -> None:
        for _ in range(count):
            lsn = self.vclock.lsn(replica_id) + 1
            self.vclock = self.vclock.with_lsn(replica_id, lsn)
            body = b"\x82\x10\xcd\x02\x00\x21\x91\xda" + size.to_bytes(2, "big") + bytes(size)
            row = Row(2, replica_id, lsn, 1.5, lsn, body=body)
            self.writer.write([encode_row(row)], self.vclock)
        self.writer.sync()

    def follow(self, after: VClock) -> Follower:
        self.opened.append(Follower(self.path, after))
        return self.opened[-1]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path)
    yield made
    made.writer.close()


def rows(window: Window | None) -> list[tuple[int, int]]:
    assert window is not None
    return [
        (block.columns.replica_id[i], block.columns.lsn[i])
        for block in window.blocks
        for i in range(len(block.columns))
    ]


def test_reader_catches_up_and_then_shares_windows(log: Log) -> None:
    """Two readers at the end are given the very same object; the log is read by one of them."""
    log.write(1, 5)

    async def main() -> None:
        hub = Hub(log.follow)
        first, second = hub.reader(VClock()), hub.reader(VClock({1: 3}))
        assert rows(first.take()) == [(1, lsn) for lsn in range(1, 6)]
        assert first.take() is None
        assert rows(second.take()) == [(1, 4), (1, 5)]
        assert second.take() is None
        assert first.is_at_end
        assert second.is_at_end
        log.write(1, 2)
        log.write(2)
        window = first.take()
        assert rows(window) == [(1, 6), (1, 7), (2, 1)]
        assert second.take() is window
        assert first.vclock == second.vclock == VClock({1: 7, 2: 1})
        assert first.take() is None
        hub.close()
        assert hub.readers == 0

    asyncio.run(main())
    assert len(log.opened) == 2


def test_waiting_reader_is_woken_by_a_commit_from_another_thread(log: Log) -> None:
    """Commits happen in the writer's thread."""

    async def main() -> None:
        hub = Hub(log.follow)
        reader = hub.reader(VClock())
        assert reader.take() is None
        waiting = asyncio.ensure_future(reader.wait())
        await asyncio.sleep(0)

        def commit() -> None:
            log.write(1)
            hub.committed()

        await asyncio.to_thread(commit)
        await asyncio.wait_for(waiting, 10)
        assert rows(reader.take()) == [(1, 1)]
        hub.close()

    asyncio.run(main())


def test_commit_between_asking_and_awaiting_is_not_missed(log: Log) -> None:
    """A wait that a task begins to await later ends with a commit that was made in between."""

    async def scenario() -> None:
        hub = Hub(log.follow)
        reader = hub.reader(VClock())
        assert reader.take() is None
        waiting = asyncio.ensure_future(reader.wait())  # runs after what is scheduled already
        hub.committed()
        async with asyncio.timeout(10):
            await waiting
        later = reader.wait()
        hub.committed()
        for _ in range(3):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await later
        reader.close()
        assert hub.readers == 0

    asyncio.run(scenario())


def test_packets_are_made_once_for_all_that_want_the_same(log: Log) -> None:
    """A filter for an id that is not in the window does not count as another wish."""
    log.write(1)

    async def main() -> None:
        hub = Hub(log.follow)
        reader = hub.reader(VClock())
        reader.take()
        assert reader.take() is None
        log.write(1, 2)
        log.write(2, 1)
        window = reader.take()
        assert window is not None
        every = window.packets({})
        assert window.packets({5: 0}) is every
        without = window.packets({2: 0})
        assert len(without) < len(every)
        assert every.startswith(without)
        later = window.above(VClock({1: 3}))
        assert every.endswith(later.packets({}))
        assert rows(later) == [(2, 1)]
        assert window.above(VClock({1: 3})) is later
        elsewhere = window.above(VClock({1: 1, 7: 9}))
        assert elsewhere.blocks is window.blocks
        assert elsewhere.packets({}) is every
        assert elsewhere.end == VClock({1: 3, 2: 1, 7: 9})
        hub.close()

    asyncio.run(main())


def test_reader_that_falls_behind_reads_by_itself_again(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is skipped and nothing comes twice; what is kept is bounded."""
    monkeypatch.setattr(hub_module, "HUB_WINDOWS_BYTES", 3000)
    monkeypatch.setattr(hub_module, "HUB_STEP_BYTES", 1000)
    assert limits.HUB_STEP_BYTES > 1000
    log.write(1)

    async def main() -> None:
        hub = Hub(log.follow)
        quick, slow = hub.reader(VClock()), hub.reader(VClock())
        for reader in (quick, slow):
            while reader.take() is not None:
                pass
            assert reader.is_at_end
        for _ in range(10):
            log.write(1, 10, size=100)
            while quick.take() is not None:
                pass
        assert quick.vclock == VClock({1: 101})
        got: list[tuple[int, int]] = []
        while (window := slow.take()) is not None:
            got += rows(window)
        assert got == [(1, lsn) for lsn in range(2, 102)]
        assert slow.is_at_end
        assert len(log.opened) == 3  # the slow one began anew
        hub.close()

    asyncio.run(main())


@pytest.mark.parametrize("first", [0, 1], ids=["plain first", "ahead first"])
@pytest.mark.parametrize("joins", ["together", "later"])
def test_reader_ahead_of_the_log_gets_what_it_lacks_and_takes_nothing_from_others(
    log: Log, first: int, joins: str
) -> None:
    """A follower may know rows that we do not have yet, or ids that we never heard of. Whoever
    reads the log first, each gets the rows above its own position."""
    log.write(1, 3)

    async def main() -> None:
        hub = Hub(log.follow)
        positions = [VClock(), VClock({1: 5, 7: 9})]
        found: list[list[tuple[int, int]]] = [[], []]
        readers = {}

        def take_all(*numbers: int) -> None:
            for number in numbers:
                if number not in readers:
                    readers[number] = hub.reader(positions[number])
                while (window := readers[number].take()) is not None:
                    found[number] += rows(window)

        take_all(first, 1 - first) if joins == "together" else take_all(first)
        log.write(1, 1)
        take_all(first, 1 - first)
        log.write(1, 3)
        log.write(7, 10)
        take_all(first, 1 - first)
        every = [(1, lsn) for lsn in range(1, 8)] + [(7, lsn) for lsn in range(1, 11)]
        assert found == [every, [(1, 6), (1, 7), (7, 10)]]
        assert readers[0].vclock == readers[1].vclock == VClock({1: 7, 7: 10})
        log.write(1)
        assert readers[first].take() is readers[1 - first].take() is not None
        hub.close()

    asyncio.run(main())


def test_many_readers_at_the_end_have_one_file_open(log: Log) -> None:
    """However many come, ahead or not, and whoever came first leaves; none when all have left."""
    log.write(1, 5)

    async def main() -> None:
        hub = Hub(log.follow)
        readers = [hub.reader(VClock({1: 8 - number % 9})) for number in range(100)]
        for reader in readers:
            while reader.take() is not None:
                pass
        assert sum(follower.file is not None for follower in log.opened) == 1
        for reader in readers[:-1]:
            reader.close()
        log.write(1, 9)
        assert rows(readers[-1].take())[-1] == (1, 14)
        assert sum(follower.file is not None for follower in log.opened) == 1
        readers[-1].close()
        assert all(follower.file is None for follower in log.opened)

    asyncio.run(main())
    assert len(log.opened) == 100


def test_reader_in_front_of_the_tail_is_not_taken_in(log: Log) -> None:
    """It would pass over what the tail has read since; once it has that, it is."""
    log.write(1, 2)

    async def main() -> None:
        hub = Hub(log.follow)
        reader = hub.reader(VClock())
        while reader.take() is not None:
            pass
        assert reader.is_at_end
        late = log.follow(VClock({1: 1}))
        assert hub.adopt(late, VClock({1: 1})) is None
        assert hub.adopt(late, VClock({1: 2})) == hub.next_number
        hub.close()

    asyncio.run(main())


def test_error_in_the_shared_windows_concerns_those_alone_that_lack_rows(tmp_path: Path) -> None:
    """The log is shortened while a reader rests: it is told, who needs nothing of that goes on."""
    log = Log(tmp_path, max_bytes=200)
    log.write(1, 3)

    async def main() -> None:
        hub = Hub(log.follow)
        resting = hub.reader(VClock())
        while resting.take() is not None:
            pass
        log.write(1, 30, size=50)
        for file in scan_directory(tmp_path).xlogs[:-1]:
            file.path.unlink()
        newest = hub.reader(log.vclock)
        assert newest.take() is None
        log.write(1)
        assert rows(newest.take()) == [(1, 34)]
        with pytest.raises((PositionUnavailable, ChainGap)):
            resting.take()
        log.write(1)
        assert rows(newest.take()) == [(1, 35)]
        hub.close()

    asyncio.run(main())
    log.writer.close()


def test_what_was_read_before_an_error_is_given_before_it_is_told(log: Log) -> None:
    """A file that cannot be opened for a moment costs no row."""
    log.write(1, 3)

    async def main() -> None:
        hub = Hub(log.follow)
        reader = hub.reader(VClock())
        poll, failures = log.opened[0].poll, [WriteFailed("too many open files", path="x")]

        def failing() -> Iterator[Block]:
            yield from poll()
            if failures:
                raise failures.pop()

        log.opened[0].poll = failing  # type: ignore[method-assign]
        assert rows(reader.take()) == [(1, 1), (1, 2), (1, 3)]
        log.write(1)
        assert rows(reader.take()) == [(1, 4)]
        hub.close()

    asyncio.run(main())


def test_position_that_is_gone_is_told(tmp_path: Path) -> None:
    """The first `take` says what is missing."""
    log = Log(tmp_path, VClock({1: 50}))
    log.write(1)

    async def main() -> None:
        hub = Hub(log.follow)
        reader = hub.reader(VClock({1: 3}))
        with pytest.raises(PositionUnavailable):
            reader.take()
        hub.close()

    asyncio.run(main())
    log.writer.close()


def test_reader_that_was_parked_goes_on_where_it_was(log: Log) -> None:
    """It has no file open meanwhile, at any place of its way; each row comes once."""
    log.write(1, 60, size=200)

    async def main() -> None:
        hub = Hub(log.follow)
        reader = hub.reader(VClock(), step_bytes=500)
        found: list[tuple[int, int]] = []
        while len(found) < 60:
            reader.park()
            assert all(follower.file is None for follower in log.opened)
            found += rows(reader.take())
        assert found == [(1, lsn) for lsn in range(1, 61)]
        reader.park()
        assert reader.take() is None
        log.write(1)
        reader.park()
        assert rows(reader.take()) == [(1, 61)]
        hub.close()

    asyncio.run(main())


def test_listeners_are_called_at_each_commit(log: Log) -> None:
    """In the loop's thread, once for many commits before it turns."""

    async def main() -> None:
        hub = Hub(log.follow)
        calls: list[int] = []
        hub.listen(lambda: calls.append(1))
        hub.committed()
        await asyncio.to_thread(int)
        assert calls == []  # nobody reads
        reader = hub.reader(VClock())
        await asyncio.to_thread(hub.committed)
        await asyncio.to_thread(int)
        hub.committed()
        hub.committed()
        await asyncio.to_thread(int)
        assert calls == [1, 1]
        reader.close()

    asyncio.run(main())


def test_a_place_that_nobody_waits_for_is_not_looked_for_to_the_end(log: Log) -> None:
    """Its thread ends at the next block, and the reader is closed: else those of replicas that come
    again and again take all threads."""
    log.write(1, 40)
    looked, may_go_on = threading.Event(), threading.Event()

    file = log.path / f"{0:020d}.xlog"

    def durable() -> tuple[Path, int]:
        looked.set()
        assert may_go_on.wait(30)
        return file, file.stat().st_size

    async def main() -> None:
        follower = Follower(log.path, VClock({1: 39}), durable=durable)
        hub = Hub(lambda after: follower)
        reader = hub.reader(VClock({1: 39}))
        skipping = asyncio.ensure_future(reader.skip_in_background())
        await asyncio.to_thread(looked.wait, 30)
        skipping.cancel()
        await asyncio.wait((skipping,))
        may_go_on.set()
        while hub.readers:
            await asyncio.to_thread(threading.Event().wait, 0.001)
        assert 0 < follower.offset < file.stat().st_size // 4

    asyncio.run(main())
