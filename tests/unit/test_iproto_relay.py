"""Relaying the log: packets made of a block's bytes in one pass, and when that pass is taken."""

from __future__ import annotations

import asyncio
import uuid
from array import array
from pathlib import Path
from random import Random

import pytest
from mutation import mutate
from samples import good_blocks
from support.kernels import PLAIN_IPROTO

from logweir.errors import CorruptBlock, DecodeError, LimitExceeded
from logweir.limits import HUB_STEP_BYTES
from logweir.replication.iproto.push import next_packets
from logweir.replication.iproto.wire import kernel
from logweir.replication.iproto.wire.packets import Packets
from logweir.replication.stream.hub import Hub, Reader
from logweir.wal import kernel as rows
from logweir.wal.columns import RowColumns
from logweir.wal.damage import Damage
from logweir.wal.follow import Follower
from logweir.wal.reader import Block, WalReader
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter, WriterOptions
from logweir.wal.xrow import Row, encode_row

ONES = 2**64 - 1
UUID = uuid.UUID("11111111-1111-4111-8111-111111111111")


def relayed_by_columns(
    block: bytes, after: array[int], upto: array[int], sync: int, lsns: array[int]
) -> bytes | None:
    """What a block's packets are by way of columns; None where any step of it is refused."""
    try:
        columns = RowColumns.scan(block)
        columns.transaction_ends()
        columns.raise_lsns(lsns)
        if not len(columns) or max(lsns) >> 63:
            return None
        limits = {i: lsn for i, lsn in enumerate(upto) if lsn < ONES}
        return bytes(
            columns.packets(0, len(columns), after=dict(enumerate(after)), upto=limits, sync=sync)
        )
    except (DecodeError, LimitExceeded):
        return None


def check_relay(block: bytes, after: array[int], upto: array[int], sync: int) -> bool:
    """Both kernels relay a block as the columns say, or refuse it with them. Whether they did."""
    lsns = array("Q", [0]) * 32
    want = relayed_by_columns(block, after, upto, sync, lsns)
    for run in (kernel, PLAIN_IPROTO):
        found, out = array("Q", [0]) * 32, bytearray(3 * len(block) + 500)
        end = run.relay(block, after, upto, sync, found, out, 7)
        if want is None:
            assert end == -1
            continue
        assert out[7:end] == want
        assert found == lsns
        assert run.relay(block, after, upto, sync, found, bytearray(7), 7) in (-1, 7)
        if want:
            exact = bytearray(len(want) + 5 + rows.HEADER_ROOM)
            assert run.relay(block, after, upto, sync, found, exact, 0) in (-1, len(want))
            assert len(exact) == len(want) + 5 + rows.HEADER_ROOM
    return want is not None


@pytest.mark.parametrize("sync", [0, 300])
def test_blocks_are_relayed_in_one_pass_as_in_four(sync: int) -> None:
    """The pass that checks rows, transactions and lsns and writes packets says of good and of
    mutated blocks what the single ones say."""
    random = Random(sync)
    none, all_ = array("Q", [0]) * 32, array("Q", [ONES]) * 32
    after, upto = none[:], all_[:]
    after[1], after[2], upto[1], upto[31] = 3, 6, 40, 0
    signed = [
        encode_row(Row(2, 0, 9, 1.5, 9, group_id=1, body=b"\x81\x10\x05")),
        encode_row(Row(3, 2, 7, 1.5, 7, commit=False, group_id=1, body=b"\x81\x10\x01")),
        encode_row(Row(3, 2, 8, 1.5, 7, flags=3, commit=True, group_id=1, body=b"\x80")),
    ]
    large = encode_row(Row(2, 1, 2**63, body=b"\x80"))
    assert check_relay(b"".join(signed), none, all_, sync)
    assert not check_relay(b"", none, all_, sync)
    assert not check_relay(large, none, all_, sync)
    assert not check_relay(signed[1], none, all_, sync)
    assert not check_relay(signed[1] + signed[0], none, all_, sync)
    assert not check_relay(encode_row(Row(2, 32, 5, body=b"\x80")), none, all_, sync)
    taken = 0
    for block in random.sample(good_blocks(), 30):
        assert check_relay(block, none, all_, sync)
        assert check_relay(block, after, upto, sync)
        for _ in range(20):
            taken += check_relay(mutate(random, block), after, upto, sync)
    assert 0 < taken < 600


def body(*values: bytes) -> bytes:
    return b"\x82\x10\xcd\x02\x00\x21" + bytes((0x90 + len(values),)) + b"".join(values)


def test_rows_like_the_one_before_are_read_as_if_they_were_not() -> None:
    """Headers that differ in one byte, lsns of another width, keys that stand twice or are written
    another way: mutated anywhere, both kernels say what the columns say."""
    random = Random(11)
    none, all_ = array("Q", [0]) * 32, array("Q", [ONES]) * 32
    after, upto = none[:], all_[:]
    after[1], upto[1] = 2**16, 2**32 + 1
    headers = [
        lambda lsn: b"\x84\x00\x03\x02\x01\x03" + lsn + b"\x04\xcb" + bytes(8),
        lambda lsn: b"\x85\x00\x03\x02\x01\x03" + lsn + b"\x08\x00\x09\x01",
        lambda lsn: b"\x85\x00\x03\x02\x01\x03" + lsn + b"\x08\x01\x09\x01",
        lambda lsn: b"\x84\x00\x03\x02\x01\x03" + lsn + b"\x03" + lsn,
        lambda lsn: b"\x84\x00\x03\x02\x01\x03" + lsn + b"\xcc\x03" + lsn,
        lambda lsn: b"\x83\x00\x03\xcc\x02\x01\x03" + lsn,
        lambda lsn: b"\x84\x00\x03\x02\x01\x03" + lsn + b"\x07\x01",
        lambda lsn: b"\x83\x00\x03\x03" + lsn + b"\x07\x01",
    ]
    lsns = [b"\x05", b"\xcc\xfe", b"\xcd\xff\xff", b"\xce\x00\x01\x00\x00", b"\xce" + b"\xff" * 4]
    lsns += [b"\xcf\x00\x00\x00\x01\x00\x00\x00" + bytes((i,)) for i in range(3)]
    lsns += [b"\xcf\x80" + bytes(7)]
    bodies = [body(), body(b"\x01"), body(b"\xa3abc", b"\xc0"), b"\x81\x10\x05"]
    bodies += [b"\x82\x21\x91\x01\x21\x91\x02", b"\x82\x21\x91\x01\x10\x05"]
    good = 0
    for _ in range(3000):
        header, tail = random.choice(headers), random.choice(bodies)
        block = b""
        for _ in range(random.randrange(1, 6)):
            if random.random() < 0.2:
                header = random.choice(headers)
            if random.random() < 0.3:
                tail = random.choice(bodies)
            block += header(random.choice(lsns)) + tail
        good += check_relay(block, after, upto, random.choice((0, 7)))
        check_relay(mutate(random, block), none, all_, 0)
    assert good > 300


# --- when it is taken -----------------------------------------------------------------------------


def write_log(
    path: Path, count: int, *, per_block: int = 50, max_bytes: int = 3 * 2**20
) -> WalWriter:
    """A log of `count` rows of 1000 bytes that do not compress, in several files."""
    random = Random(3)
    writer = WalWriter(path, UUID, AppendPoint(VClock()), options=WriterOptions(max_bytes))
    for first in range(1, count + 1, 50):
        lsns = range(first, min(first + 50, count + 1))
        made = [
            encode_row(
                Row(2, 1, lsn, 1.5, lsn, body=body(b"\xc5\x03\xe8" + random.randbytes(1000)))
            )
            for lsn in lsns
        ]
        writer.write([b"".join(made)], VClock({1: lsns[-1]}))
    writer.sync()
    return writer


def stored_packets(path: Path, after: int = 0) -> bytes:
    """All rows of a folder behind an lsn, as packets."""
    parts = []
    for file in sorted(path.glob("*.xlog")):
        with WalReader(file) as reader:
            for block in reader.blocks():
                assert isinstance(block, Block)
                parts.append(block.columns.packets(0, len(block.columns), after={1: after}))
    return b"".join(parts)


class Relayed:
    """What a reader of a folder is sent. `alone`: how often in one pass."""

    def __init__(self, reader: Reader, upto: dict[int, int] | None = None) -> None:
        self.alone = 0
        self.sent = b""
        pack = reader.pack

        def counted(packets: Packets) -> bool:
            done = pack(packets)
            self.alone += done
            return done

        reader.pack = counted  # type: ignore[method-assign]
        while (packets := next_packets(reader, upto or {}, 0)) is not None:
            self.sent += packets


def relay_all(path: Path, after: VClock, *, skip: bool = True) -> tuple[Relayed, VClock]:
    async def main() -> tuple[Relayed, VClock]:
        hub = Hub(lambda start: Follower(path, start))
        reader = hub.reader(after)
        if skip:
            reader.skip()
        relayed = Relayed(reader)
        end = reader.vclock
        assert reader.is_at_end
        hub.close()
        return relayed, end

    return asyncio.run(main())


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("after", [0, 1, 49, 50, 777, 7999, 8000])
def test_log_is_relayed_whole_over_several_files(tmp_path: Path, after: int, skip: bool) -> None:
    """Every row behind the position once and in order, most of them in one pass."""
    write_log(tmp_path, 8000).close()
    relayed, end = relay_all(tmp_path, VClock({1: after}), skip=skip)
    assert relayed.sent == stored_packets(tmp_path, after)
    assert end == VClock({1: 8000})
    assert (relayed.alone > 0) == (after < 1000)


def test_block_that_does_not_fit_is_read_as_columns(tmp_path: Path) -> None:
    """A transaction larger than a step is relayed too, between two that are not."""
    writer = WalWriter(tmp_path, UUID, AppendPoint(VClock()))
    text = b"\xc6" + (3 * HUB_STEP_BYTES).to_bytes(4, "big") + bytes(3 * HUB_STEP_BYTES)
    for lsn in range(1, 31):
        value = text if lsn == 21 else b"\xc5\xff\xff" + b"x" * 0xFFFF
        row = Row(2, 1, lsn, 1.5, lsn, body=body(value))
        writer.write([encode_row(row)], VClock({1: lsn}))
    writer.close()
    relayed, _ = relay_all(tmp_path, VClock())
    assert relayed.sent == stored_packets(tmp_path)
    assert relayed.alone > 0


def test_rows_that_nobody_wants_are_passed_over_step_by_step(tmp_path: Path) -> None:
    """A step ends behind so many bytes of the log, also where nothing is made of them."""
    write_log(tmp_path, 4000, max_bytes=2**30).close()
    (file,) = tmp_path.glob("*.xlog")
    with WalReader(file) as reader:
        blocks = [block for block in reader.blocks() if isinstance(block, Block)]
        step = 3 * len(blocks[0].data)
        packets = Packets({1: 0}, 0, 5_000_000)
        ends = [blocks[0].offset]
        while ends[-1] < blocks[-1].offset:
            ends.append(reader.pack(ends[-1], reader.size, packets, step))
        assert packets.written_bytes == 0
        assert len(blocks) // 4 <= len(ends) <= len(blocks) // 2


def test_damage_behind_what_was_relayed_is_told_with_its_neighbours(tmp_path: Path) -> None:
    """What was relayed in one pass counts as read, up to the damage."""
    write_log(tmp_path, 4000, max_bytes=2**30).close()
    (file,) = tmp_path.glob("*.xlog")
    with WalReader(file) as reader:
        offsets = [block.offset for block in reader.blocks() if isinstance(block, Block)]
    data = bytearray(file.read_bytes())
    data[offsets[70] + 2] ^= 1
    file.write_bytes(data)
    with WalReader(file) as reader:
        packets = Packets({}, 0, 5_000_000)
        end = reader.pack(offsets[0], reader.size, packets, 5_000_000)
        assert end == offsets[70]
        assert packets.last_lsns() == reader.vclock == {1: 3500}
        damage = next(reader.blocks(end))
        assert isinstance(damage, Damage)
        assert (damage.lsn_before, damage.lsn_after, damage.rows_lost) == (3500, 3551, 50)

    async def main() -> None:
        hub = Hub(lambda start: Follower(tmp_path, start))
        reader = hub.reader(VClock())
        with pytest.raises(CorruptBlock, match="no block begins here"):
            Relayed(reader)
        assert reader.vclock == VClock({1: 3500})
        hub.close()

    asyncio.run(main())


def test_what_is_not_synced_is_not_relayed(tmp_path: Path) -> None:
    """A block behind the durable end, which may be cut off and written anew, is not taken though
    it was read from the disk already."""
    writer = write_log(tmp_path, 2000, max_bytes=2**30)
    file = writer.path
    assert file is not None
    durable = writer.size
    whole = stored_packets(tmp_path)
    row = Row(2, 1, 2001, 1.5, 2001, body=body(b"\x01"))
    writer.write([encode_row(row)], VClock({1: 2001}))

    async def main() -> None:
        nonlocal durable
        hub = Hub(lambda start: Follower(tmp_path, start, durable=lambda: (file, durable)))
        reader = hub.reader(VClock())
        sent = b""
        while not reader.is_at_end:
            packets = next_packets(reader, {}, 0)
            if packets is None:
                break
            sent += packets
            if len(sent) > len(whole) // 2:
                # Cut off behind its back, as after a failed write, and another row there.
                with file.open("r+b") as again:
                    again.truncate(durable)
        assert sent == whole
        other = Row(2, 1, 2001, 1.5, 2001, body=body(b"\x02"))
        second = WalWriter(tmp_path, UUID, AppendPoint(VClock({1: 2000}), VClock(), file, durable))
        second.write([encode_row(other)], VClock({1: 2001}))
        second.sync()
        durable = second.size
        last = next_packets(reader, {}, 0)
        assert last is not None
        assert bytes(last).endswith(other.body)
        second.abandon()
        hub.close()

    asyncio.run(main())
    writer.abandon()


def test_filter_and_own_rows_hold_in_one_pass(tmp_path: Path) -> None:
    """Rows after a limit are left out; the position passes over them."""
    write_log(tmp_path, 3000).close()

    async def main() -> tuple[bytes, VClock]:
        hub = Hub(lambda start: Follower(tmp_path, start))
        reader = hub.reader(VClock())
        sent = Relayed(reader, {1: 1700}).sent
        hub.close()
        return sent, reader.vclock

    sent, end = asyncio.run(main())
    whole = stored_packets(tmp_path)
    assert whole.startswith(sent)
    assert whole[len(sent) :] == stored_packets(tmp_path, 1700)
    assert end == VClock({1: 3000})
