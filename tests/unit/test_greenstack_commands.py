"""What MUTATION, GET and REMOVE do to a bucket, and JSON patches."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gsmodel import Server

from logweir.errors import DecodeError, LimitExceeded
from logweir.limits import GREENSTACK_ID_BYTES, TAP_VALUE_BYTES
from logweir.replication.bucket.item import Item, VbucketState
from logweir.replication.bucket.patch import PatchFailed, patch
from logweir.replication.greenstack.serve.commands import document_of, expiration_seconds
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire.codec import Frame, Opcode, Status
from logweir.replication.greenstack.wire.messages import Document, MutationAnswer, Operation

VBUCKET = {7: b"\0\0"}


def mutation(key: bytes, value: bytes = b"v", operation: int = Operation.SET, **of: Any) -> Frame:
    """A MUTATION of vbucket 0."""
    payload = Document(key, value, **of).encode(operation)
    return Frame(Opcode.MUTATION, payload=payload, flex=VBUCKET)


def get(server: Server, key: bytes = b"k") -> Document | None:
    """The document, None where there is none."""
    payload = messages.encode_get(key)
    (answer,) = server.ask(Frame(Opcode.GET, payload=payload, flex=VBUCKET))
    if answer.status == Status.NOT_FOUND:
        return None
    assert answer.status == Status.SUCCESS
    return messages.decode_get_answer(answer.payload)


def test_operations_on_what_is_not_there() -> None:
    """Set and Add make it, the others have each their refusal."""
    for operation, status in (
        (Operation.ADD, Status.SUCCESS),
        (Operation.SET, Status.SUCCESS),
        (Operation.REPLACE, Status.NOT_FOUND),
        (Operation.APPEND, Status.NOT_STORED),
        (Operation.PREPEND, Status.NOT_STORED),
        (Operation.PATCH, Status.NOT_FOUND),
    ):
        server = Server()
        assert server.status(mutation(b"k", b"v", operation)) == status
        assert (get(server) is not None) == (status == Status.SUCCESS)


def test_operations_on_what_is_there() -> None:
    """Values, and which of flags, datatype and expiration stay."""
    date = "2199-01-01T00:00:00Z"
    for operation, value, flags in (
        (Operation.SET, b"n", 9),
        (Operation.REPLACE, b"n", 9),
        (Operation.APPEND, b"oldn", 5),
        (Operation.PREPEND, b"nold", 5),
    ):
        server = Server()
        server.ask(mutation(b"k", b"old", flags=5, expiration=date, datatype=1))
        (answer,) = server.ask(mutation(b"k", b"n", operation, flags=9))
        found = get(server)
        assert found is not None
        assert (found.value, found.flags) == (value, flags)
        assert found.expiration == (date if flags == 5 else "")
        assert found.datatype == (1 if flags == 5 else 0)
        told = MutationAnswer.decode(answer.payload)
        assert (told.cas, told.size, told.vbucket_uuid) == (found.cas, len(value), 7)
    server = Server()
    server.ask(mutation(b"k"))
    assert server.status(mutation(b"k", b"v", Operation.ADD)) == Status.ALREADY_EXISTS


def test_a_cas_is_a_condition() -> None:
    """Of every operation but Add, which cannot have one."""
    for operation in Operation:
        server = Server()
        (answer,) = server.ask(mutation(b"k", b"{}", datatype=1))
        cas = MutationAnswer.decode(answer.payload).cas
        wrong = mutation(b"k", b"{}", operation, cas=cas + 1)
        right = mutation(b"k", b"{}", operation, cas=cas)
        if operation == Operation.ADD:
            assert server.status(right) == Status.INVALID_ARGUMENTS
            continue
        assert server.status(wrong) == Status.ALREADY_EXISTS
        assert server.status(right) == Status.SUCCESS
        assert server.status(right) == Status.ALREADY_EXISTS
    assert Server().status(mutation(b"k", cas=1)) == Status.NOT_FOUND


def test_what_is_no_request_is_refused() -> None:
    """Ids, operations, kinds, dates, vbuckets."""
    server = Server()
    fine = b"k" * GREENSTACK_ID_BYTES
    assert server.status(mutation(fine)) == Status.SUCCESS
    assert server.status(mutation(fine + b"k")) == Status.INVALID_ARGUMENTS
    for bad in (
        mutation(b""),
        mutation(b"a\0b"),
        mutation(b"k", operation=0),
        mutation(b"k", operation=7),
        mutation(b"k", operation=-1),
        mutation(b"k", datatype=2),
        mutation(b"k", compression=4),
        mutation(b"k", expiration="tomorrow"),
        Frame(Opcode.MUTATION, payload=Document(b"k").encode()),
        Frame(Opcode.MUTATION, payload=Document(b"k").encode(), flex={7: b"\1"}),
        Frame(Opcode.MUTATION, flex=VBUCKET),
        Frame(Opcode.GET, payload=messages.encode_get(b"k")),
        Frame(Opcode.GET, payload=messages.encode_get(b""), flex=VBUCKET),
        Frame(Opcode.GET, payload=b"junk", flex=VBUCKET),
        Frame(Opcode.REMOVE, payload=messages.encode_remove(b"", 0), flex=VBUCKET),
    ):
        assert server.status(bad) == Status.INVALID_ARGUMENTS, bad
    assert server.status(mutation(b"k", bytes(TAP_VALUE_BYTES))) == Status.SUCCESS
    assert server.status(mutation(b"k", bytes(TAP_VALUE_BYTES + 1))) == Status.OBJECT_TOO_BIG
    assert server.status(mutation(b"k", b"1", Operation.APPEND)) == Status.OBJECT_TOO_BIG


def test_vbuckets() -> None:
    """One that is no one's becomes active with its first document, not with a failure."""
    server = Server()
    there = {7: b"\0\5"}
    payload = Document(b"k").encode(Operation.REPLACE)
    assert server.status(Frame(Opcode.MUTATION, payload=payload, flex=there)) == Status.NOT_FOUND
    assert 5 not in server.bucket.states
    payload = Document(b"k").encode()
    assert server.status(Frame(Opcode.MUTATION, payload=payload, flex=there)) == Status.SUCCESS
    assert server.bucket.states[5] == VbucketState.ACTIVE
    for state, status in (
        (VbucketState.REPLICA, Status.NOT_MY_VBUCKET),
        (VbucketState.DEAD, Status.NOT_MY_VBUCKET),
        (VbucketState.PENDING, Status.TMP_FAILURE),
    ):
        server.bucket.set_state(0, state)
        assert server.status(mutation(b"x")) == status
        read = Frame(Opcode.GET, payload=messages.encode_get(b"x"), flex=VBUCKET)
        assert server.status(read) == status


def test_removal_and_dates_in_the_past() -> None:
    """REMOVE by CAS; a date that is over removes, and of nothing makes nothing."""
    server = Server()
    (answer,) = server.ask(mutation(b"k"))
    cas = MutationAnswer.decode(answer.payload).cas
    for wanted, status in ((cas + 1, 0x0D), (cas, 0), (0, 8)):
        remove = messages.encode_remove(b"k", wanted)
        assert server.status(Frame(Opcode.REMOVE, payload=remove, flex=VBUCKET)) == status
    server.ask(mutation(b"k"))
    for _ in range(2):
        over = mutation(b"k", expiration="2001-01-01T00:00:00Z")
        assert server.status(over) == Status.SUCCESS
        assert get(server) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0),
        ("1970-01-01T00:00:00Z", 1),
        ("2031-04-05T06:07:08Z", 1933135628),
        ("2031-04-05T06:07:08", 1933135628),
        ("2031-04-05T06:07:08.999Z", 1933135628),
        ("2031-04-05T08:07:08+02:00", 1933135628),
        ("2031-04-05T05:37:08-00:30", 1933135628),
    ],
)
def test_dates(text: str, seconds: int) -> None:
    """With and without zone and fraction."""
    assert expiration_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "2031-04-05",
        "2031-13-05T06:07:08Z",
        "2031-04-05 06:07:08",
        "x" * 10_000,
        "2031-04-05T06:07:08+99:00",
    ],
)
def test_what_is_no_date_is_refused(text: str) -> None:
    """With our error."""
    with pytest.raises(DecodeError):
        expiration_seconds(text)


def test_items_of_other_protocols_are_shown_in_our_terms() -> None:
    """An expiry as a date, memcached's datatype bits as JSON and Snappy."""
    assert document_of(Item(b"k", expiry=1933135628)).expiration == "2031-04-05T06:07:08Z"
    stale = Item(b"k", expiry=1933135629, expiration="2031-04-05T06:07:08Z")
    assert document_of(stale).expiration == "2031-04-05T06:07:09Z"
    assert document_of(Item(b"k", expiry=2**63)).expiration == ""
    both = document_of(Item(b"k", datatype=3))
    assert (both.datatype, both.compression) == (1, 1)


# --- patches ----------------------------------------------------------------------------------

MERGES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ({"a": "b"}, "c", "c"),
    ({"a": "b"}, None, None),
]


@pytest.mark.parametrize(("document", "change", "result"), MERGES)
def test_merge_patches(document: Any, change: Any, result: Any) -> None:
    """The examples of RFC 7396 whose patch is no array."""
    made = patch(json.dumps(document).encode(), json.dumps(change).encode(), 1000)
    assert json.loads(made) == result


STEPS = [
    ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
    ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
    ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
    ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
    ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
    ({"a": 1}, [{"op": "replace", "path": "/a", "value": 5}], {"a": 5}),
    ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
    ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
    ({"a~/": 1}, [{"op": "test", "path": "/a~0~1", "value": 1}], {"a~/": 1}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": [1]}], [1]),
    ({"": 1}, [{"op": "add", "path": "/", "value": 2}], {"": 2}),
    ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/a"}], {"a": 1}),
]


@pytest.mark.parametrize(("document", "steps", "result"), STEPS)
def test_json_patches(document: Any, steps: Any, result: Any) -> None:
    """Each operation of RFC 6902."""
    made = patch(json.dumps(document).encode(), json.dumps(steps).encode(), 1000)
    assert json.loads(made) == result


@pytest.mark.parametrize(
    "step",
    [
        {"op": "remove", "path": "/x"},
        {"op": "test", "path": "/a", "value": 2},
        {"op": "test", "path": "/t", "value": 1},
        {"op": "add", "path": "/l/9", "value": 0},
        {"op": "add", "path": "/l/01", "value": 0},
        {"op": "add", "path": "/x/y", "value": 0},
        {"op": "move", "from": "/l", "path": "/l/0"},
        {"op": "replace", "path": "/l/-", "value": 0},
    ],
)
def test_steps_that_cannot_be_done(step: Any) -> None:
    """Nothing of the patch is made."""
    with pytest.raises(PatchFailed):
        patch(b'{"a":1,"t":true,"l":[1]}', json.dumps([step]).encode(), 1000)


@pytest.mark.parametrize(
    "change",
    [
        b"",
        b"{",
        b"[1]",
        b'[{"op":"add"}]',
        b'[{"op":"add","path":"a","value":1}]',
        b'[{"op":"frob","path":""}]',
        b'{"a":NaN}',
        b'{"a":1e999}',
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    ],
)
def test_what_is_no_patch(change: bytes) -> None:
    """Our error."""
    with pytest.raises(DecodeError):
        patch(b"{}", change, 1000)


def test_copies_cannot_grow_without_end() -> None:
    """Fifty copies of the whole into itself end at the limit."""
    steps = [{"op": "copy", "from": "", "path": f"/{number}"} for number in range(50)]
    with pytest.raises(LimitExceeded):
        patch(b'{"a":[1,2,3]}', json.dumps(steps).encode(), 100_000)


def test_patches_of_documents() -> None:
    """Only of plain JSON; a step that fails changes nothing."""
    server = Server()
    server.ask(mutation(b"k", b'{"a": 1}', datatype=1, flags=3))
    assert server.status(mutation(b"k", b'{"b":2}', Operation.PATCH)) == Status.SUCCESS
    found = get(server)
    assert found is not None
    assert (found.value, found.flags, found.datatype) == (b'{"a":1,"b":2}', 3, 1)
    missing = b'[{"op":"remove","path":"/x"}]'
    assert server.status(mutation(b"k", missing, Operation.PATCH)) == Status.NOT_STORED
    assert server.status(mutation(b"k", b"{", Operation.PATCH)) == Status.INVALID_ARGUMENTS
    assert get(server) == found
    packed = mutation(b"k", b"{}", Operation.PATCH, compression=1)
    assert server.status(packed) == Status.NOT_IMPLEMENTED
    server.ask(mutation(b"k", b"text"))
    assert server.status(mutation(b"k", b"{}", Operation.PATCH)) == Status.NOT_IMPLEMENTED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab~/", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab~"), inner),
    max_leaves=8,
)


@given(JSON, JSON)
@settings(max_examples=150, deadline=None)
def test_a_merge_of_a_document_onto_nothing_is_that_without_nulls(
    document: Any, change: Any
) -> None:
    """Whatever document and change are."""
    if isinstance(change, list):
        change = {"a": change}
    once = patch(json.dumps(document).encode(), json.dumps(change).encode(), 10_000)
    assert patch(once, json.dumps(change).encode(), 10_000) == once
