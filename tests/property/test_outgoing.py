"""What a space is to followers of another protocol: entries of tuples, and envelopes of entries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logweir
from logweir.replication.bucket.item import BUCKET_FORMAT, Item, pack_item
from logweir.replication.outgoing.shape import STREAM_FORMAT, Entry, Shape, Stamp
from logweir.replication.topic.bundle import Message, encode_bundle
from logweir.store.schema.definition import TOPIC_FIELDS
from logweir.wal.mp import pack, unpack
from logweir.wal.render import from_json
from logweir.wal.xrow import RowType

STAMP = Stamp("insert", 12.5, 3, 77)
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.none() | st.text(min_size=1, max_size=20).map(str.encode) | st.just(b"\xff"),
        st.text(max_size=20).map(str.encode) | st.binary(max_size=20),
    ),
    min_size=1,
    max_size=8,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[logweir.Log]:
    """A store with a space of each kind."""
    with logweir.open(tmp_path_factory.mktemp("shapes")) as made:
        made.create_space("orders", [("id", "unsigned"), ("who", "any")], primary=["who", "id"])
        made.create_space("events", TOPIC_FIELDS, primary=["partition", "first"])
        made.create_space("synapse_x", STREAM_FORMAT, primary=["instance", "token", "place"])
        made.create_space("cache", BUCKET_FORMAT, primary=["key"])
        yield made


def shape_of(log: logweir.Log, name: str) -> Shape:
    space = log.schema.space(name)
    assert space.primary is not None
    return Shape(space, space.primary)


def enveloped(shape: Shape, entry: Entry, stamp: Stamp = STAMP) -> Any:
    return from_json(json.loads(shape.envelope(entry, stamp)))


def is_text(data: bytes | None) -> Any:
    """Text where it is UTF-8."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return data


@given(MESSAGES, st.integers(0, 9), st.integers(1, 2**60), st.booleans())
def test_a_bundle_is_its_messages(
    log: logweir.Log,
    made: list[tuple[int, bytes | None, bytes]],
    partition: int,
    first: int,
    sparse: bool,
) -> None:
    """With partition, number, time, key and content, however the bundle is written."""
    step = 2 if sparse else 1
    messages = [Message(first + step * at, *one) for at, one in enumerate(made)]
    bundle = encode_bundle(messages, sparse=sparse)
    shape = shape_of(log, "events")
    stored = pack([partition, first, messages[-1].number, made[0][0], bundle])
    entries = shape.entries(stored)
    assert len(entries) == len(messages)
    for entry, (number, time_ms, key, content) in zip(entries, messages, strict=True):
        assert unpack(entry.key) == [partition, number]
        wanted = [partition, number, time_ms, is_text(key), is_text(content)]
        assert unpack(entry.data or b"") == wanted
        assert enveloped(shape, entry) == {
            "kind": "tank",
            "name": "events",
            "position": {"partition": partition, "number": number},
            "time": time_ms / 1000,
            "op": "insert",
            "key": is_text(key),
            "value": is_text(content),
        }


@given(st.binary(max_size=40))
def test_a_bundle_that_is_none_is_one_message_or_some(log: logweir.Log, data: bytes) -> None:
    """Whatever stands in a topic is told; what cannot be read as it stands."""
    entries = shape_of(log, "events").entries(pack([0, 5, 5, 99, data]))
    assert entries
    if unpack(entries[0].data or b"")[4] == is_text(data):
        assert unpack(entries[0].key) == [0, 5]


def test_what_is_removed_from_a_topic_is_not_told(log: logweir.Log) -> None:
    """Of other spaces it is."""
    kinds = (RowType.INSERT, RowType.REPLACE, RowType.DELETE, RowType.UPDATE, RowType.UPSERT)
    assert [shape_of(log, "events").tells(one) for one in kinds] == [True] + 4 * [False]
    assert all(shape_of(log, "orders").tells(one) for one in kinds)
    assert not shape_of(log, "orders").tells(RowType.NOP)


def test_envelopes_of_other_spaces(log: logweir.Log) -> None:
    """A row of a homeserver, an item, any tuple; and of each what is gone, or only a state."""
    shape = shape_of(log, "synapse_x")
    (entry,) = shape.entries(pack(["master", 7, 0, ["row"]]))
    common = {"name": "synapse_x", "time": 12.5, "op": "insert", "key": None, "kind": "synapse"}
    place = {"instance": "master", "token": 7, "place": 0}
    assert enveloped(shape, entry) == {**common, "position": place, "value": ["row"]}
    gone = enveloped(shape, Entry(entry.key, None), Stamp("delete", 12.5, 1, 2))
    assert gone == {**common, "op": "delete", "position": place, "value": None}

    shape = shape_of(log, "cache")
    (entry,) = shape.entries(pack_item(Item(b"k", 3, b"\xffv", cas=9)))
    common = {"kind": "memcached", "name": "cache", "time": 12.5, "op": "insert", "key": "k"}
    place = {"vbucket": 3, "cas": 9}
    assert enveloped(shape, entry) == {**common, "position": place, "value": b"\xffv"}
    assert enveloped(shape, Entry(entry.key, None)) == {**common, "position": None, "value": None}

    shape = shape_of(log, "orders")
    (entry,) = shape.entries(pack([1, "ada", 2.5]))
    common = {"kind": "tarantool", "name": "orders", "key": ["ada", 1], "value": [1, "ada", 2.5]}
    place = {"replica": 3, "lsn": 77}
    assert enveloped(shape, entry) == {**common, "position": place, "time": 12.5, "op": "insert"}
    state = {"position": None, "time": None, "op": "replace"}
    assert enveloped(shape, entry, Stamp()) == {**common, **state}
