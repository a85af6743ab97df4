"""All decoders of bytes that come from a disk or a network, each with what its inputs are made of.

`tools/fuzz` runs them for as long as it is told (`fuzz.fuzzing`), `test_targets` for a moment.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from fuzz import test_decoders, test_store_decoders
from support import gsmodel, tapmodel

from interop import synapsemodel, tankmodel
from logweir.errors import LogweirError
from logweir.recovery.report import Hole
from logweir.replication.bucket.item import Item, pack_item, unpack_item
from logweir.replication.capture.token import Token
from logweir.replication.greenstack.wire import many
from logweir.replication.greenstack.wire import messages as greenstack
from logweir.replication.greenstack.wire.codec import FrameBuffer as GreenstackFrames
from logweir.replication.iproto.wire import auth, codec
from logweir.replication.iproto.wire.requests import Request, decode_request
from logweir.replication.memcached.wire import messages as memcached
from logweir.replication.memcached.wire.codec import (
    Opcode,
    Packet,
    PacketBuffer,
    encode_request,
)
from logweir.replication.synapse.wire.codec import Dialect, parse, text_of
from logweir.replication.tank.wire import codec as tank
from logweir.replication.tank.wire.framing import FrameBuffer as TankFrames
from logweir.replication.topic.bundle import decode_bundle
from logweir.wal.crc32c import checksum
from logweir.wal.endmark import EndMark
from logweir.wal.mp import pack
from logweir.wal.vclock import VClock

__all__ = ["CORPUS", "TARGETS", "Target", "corpus_of", "run"]

ROOT: Final = Path(__file__).resolve().parents[2]
CORPUS: Final = ROOT / "tests" / "data" / "fuzz"
"""One file for each target, `NAME.hex`: an input in each line, each of which takes another way."""


class Target(NamedTuple):
    """A decoder, and what its inputs are made of."""

    decode: Callable[[bytes], object]
    corpus: Callable[[], list[bytes]]


def run(target: Target, data: bytes) -> bool:
    """Whether the bytes are taken. Raises what no decoder may raise."""
    try:
        target.decode(data)
    except LogweirError:
        return False
    return True


def corpus_of(name: str) -> list[bytes]:
    """Inputs to begin with: those that are kept, else what they are made of."""
    kept = CORPUS / f"{name}.hex"
    if not kept.exists():
        return TARGETS[name].corpus()
    return [bytes.fromhex(line) for line in kept.read_text().splitlines()]


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def _end_mark(data: bytes) -> None:
    """With its own checksum, too: what stands in front of it is what is read."""
    EndMark.decode(data + f"Checksum: {checksum(data):08x}\n".encode())


def _end_marks() -> list[bytes]:
    mark = EndMark(uuid.UUID(int=7), "00000000000000000005.xlog", 80, VClock({1: 5}))
    return [mark.encode().partition(b"Checksum: ")[0]]


# --- iproto ---------------------------------------------------------------------------------------


def _iproto_request(data: bytes) -> None:
    decode_request(data, 0, len(data), Request(-1))


def _iproto_answer(data: bytes) -> None:
    answer = codec.decode_answer(data, 0, len(data))
    codec.decode_ballot(answer.body)


def _requests() -> list[bytes]:
    bodies = [{0x10: 512, 0x21: [1, "a"]}, {0x10: 512, 0x20: [1], 0x11: 0, 0x12: 9, 0x13: 0}]
    bodies += [{0x23: "guest", 0x21: ["chap-sha1", "x" * 20]}, {0x27: "return 1", 0x21: []}, {}]
    bodies += [{0x24: "u" * 36, 0x26: {1: 5}}, {0x10: 512, 0x20: [1], 0x21: [["=", 1, 2]]}]
    return [
        pack({0: kind, 1: 7}) + pack(body)  # type: ignore[arg-type]
        for kind in (*range(1, 11), 14, 64, 65, 66, 68, 69)
        for body in bodies
    ]


def _answers() -> list[bytes]:
    ballot = {0x29: {1: True, 2: {1: 5}, 3: {1: 1}, 4: False}}
    bodies: list[Any] = [ballot, {0x30: [[1, "a"]]}, {0x31: "no"}, {0x26: {1: 2}}]
    return [pack({0: kind, 1: 7, 5: 80}) + pack(body) for kind in (0, 0x8002) for body in bodies]


# --- Greenstack, memcached and TAP, Tank, Synapse -------------------------------------------------


def _payloads() -> list[bytes]:
    vectors = gsmodel.vectors().values()
    spelled = [data for one in vectors for data in gsmodel.spellings(one)]
    ours = json.loads((ROOT / "docs" / "vectors" / "greenstack.json").read_text())["vectors"]
    spelled += [bytes.fromhex(one["hex"]) for one in ours]
    return [frame.payload for data in spelled for frame in gsmodel.frames(data)]


def _fed(buffer: Callable[[], Any]) -> Callable[[bytes], None]:
    return lambda data: buffer().feed(data)


def _packets(decode: Callable[[Any], object]) -> Callable[[bytes], None]:
    def call(data: bytes) -> None:
        for packet in PacketBuffer().feed(data)[0]:
            decode(packet)

    return call


def _tap() -> list[bytes]:
    found = [tapmodel.sent(name, side) for name in tapmodel.captures() for side in ("c2s", "s2c")]
    changed = Packet(Opcode.CHANGE_VB_FILTER, b"name", b"\0\1" + bytes(10))
    return [encode_request(changed), *(data[:2000] for data in found if data)]


def _tank(decode: Callable[[int, bytes], object]) -> Callable[[bytes], None]:
    def call(data: bytes) -> None:
        for kind, payload in TankFrames().feed(data)[0]:
            decode(kind, payload)

    return call


def _tank_sent(side: str) -> list[bytes]:
    return [item[side][:2000] for item in tankmodel.captures().values() if item[side]]


def _bundles() -> list[bytes]:
    sent = [tankmodel.frames(item["c2s"]) for item in tankmodel.captures().values()]
    published = [payload for one in sent for kind, payload in one if kind in (1, 5)]
    return [payload[at:] for payload in published for at in (35, 43)]


def _synapse(dialect: Dialect) -> Callable[[bytes], object]:
    return lambda data: parse(text_of(data), dialect)


def _lines() -> list[bytes]:
    records = [item["records"][:20] for item in synapsemodel.captures().values()]
    return [synapsemodel.wire(text)[:-1] for some in records for _, text in some]


_GREENSTACK: Final[dict[str, Callable[[bytes], object]]] = {
    "hello": greenstack.Hello.decode,
    "hello-answer": greenstack.HelloAnswer.decode,
    "sasl": greenstack.decode_sasl,
    "sasl-answer": greenstack.decode_sasl_answer,
    "keepalive": greenstack.decode_keepalive,
    "bucket": greenstack.decode_bucket,
    "buckets": greenstack.decode_buckets,
    "create": greenstack.decode_create,
    "delete": greenstack.decode_delete,
    "role": greenstack.decode_role,
    "mutation": greenstack.decode_mutation,
    "mutation-answer": greenstack.MutationAnswer.decode,
    "get": greenstack.decode_get,
    "get-answer": greenstack.decode_get_answer,
    "get-many": many.decode_get_many,
    "get-many-answer": many.decode_found,
    "stream-open": greenstack.StreamOpen.decode,
    "opened": greenstack.decode_opened,
    "close": greenstack.decode_close,
    "remove": greenstack.decode_remove,
    "mark": greenstack.Mark.decode,
    "ack": greenstack.decode_ack,
    "notice": greenstack.decode_notice,
}
_TAP: Final[dict[str, Callable[[Any], object]]] = {
    "connect": memcached.decode_connect,
    "filter": memcached.decode_filter,
    "message": memcached.decode_tap,
}

TARGETS: Final[dict[str, Target]] = {
    **{name: Target(one.decode, one.corpus) for name, one in test_decoders.TARGETS.items()},
    **{
        f"store-{name.replace(' ', '-')}": Target(one.decode, one.corpus)
        for name, one in test_store_decoders.TARGETS.items()
    },
    "store-space-320": Target(
        test_store_decoders.TARGETS["space 320"].decode,
        lambda: [pack([number, str(uuid.UUID(int=number))]) for number in (1, 2, 31)],
    ),
    "end-mark": Target(_end_mark, _end_marks),
    "hole": Target(_text(Hole.parse), lambda: [b"{1: 39} {1: 41}", b"{1: 110} ?"]),
    "capture-token": Target(
        _text(Token.parse), lambda: [str(Token(uuid.UUID(int=7), VClock({1: 5}))).encode()]
    ),
    "iproto-request": Target(_iproto_request, _requests),
    "iproto-answer": Target(_iproto_answer, _answers),
    "iproto-greeting": Target(
        codec.decode_greeting, lambda: [codec.encode_greeting(uuid.UUID(int=7), bytes(32))]
    ),
    "iproto-scramble": Target(auth.read_scramble, lambda: [pack(["chap-sha1", "x" * 20])]),
    "greenstack-frames": Target(
        _fed(GreenstackFrames), lambda: [gsmodel.sent(n, "c2s")[:2000] for n in gsmodel.CAPTURES]
    ),
    **{f"greenstack-{name}": Target(one, _payloads) for name, one in _GREENSTACK.items()},
    **{f"tap-{name}": Target(_packets(one), _tap) for name, one in _TAP.items()},
    "item": Target(
        unpack_item,
        lambda: [pack_item(Item(b"key", 3, b"value", 1, 2, 3, 4, 5, "6", b"meta", 7))],
    ),
    "tank-request": Target(_tank(tank.decode_request), lambda: _tank_sent("c2s")),
    "tank-answer": Target(_tank(tank.decode_answer), lambda: _tank_sent("s2c")),
    "tank-bundle": Target(decode_bundle, _bundles),
    **{f"synapse-{one.value}": Target(_synapse(one), _lines) for one in Dialect},
}
"""By names that can be those of files."""
