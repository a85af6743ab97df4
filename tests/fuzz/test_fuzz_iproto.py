"""Fuzz targets of iproto: any bytes give values, answers or our own errors."""

from __future__ import annotations

import contextlib
import uuid

from hypothesis import given
from hypothesis import strategies as st

from logweir.errors import DecodeError, LimitExceeded, RemoteProtocolError, RequestError
from logweir.replication.iproto.client import CommandSession
from logweir.replication.iproto.client_session import ClientSession
from logweir.replication.iproto.server_session import ServerSession
from logweir.replication.iproto.wire import auth, codec
from logweir.replication.iproto.wire.requests import Request, decode_request
from logweir.replication.iproto.wire.runs import take_run

UUID = uuid.UUID("11111111-1111-4111-8111-111111111111")
NOISE = bytes(32)
KINDS = (*range(1, 11), *range(14, 17), *range(64, 78))
HEADERS = st.sampled_from(
    [bytes((0x82, 0x00, kind, 0x01, 0x07)) for kind in KINDS]
    + [bytes((0x83, 0x00, kind, 0x01, 0x07, 0x0A, 0x01)) for kind in KINDS]
)


@given(HEADERS, st.binary(max_size=300))
def test_request(header: bytes, body: bytes) -> None:
    """A request body of any bytes is read or refused."""
    with contextlib.suppress(RequestError):
        request = Request(-1)
        decode_request(header + body, 0, len(header) + len(body), request)
        assert request.sync == 7


@given(st.binary(max_size=400))
def test_scramble_and_run(data: bytes) -> None:
    """The array of AUTH, and a run of requests."""
    with contextlib.suppress(RequestError, DecodeError, LimitExceeded):
        assert len(auth.read_scramble(data)) in (0, auth.SCRAMBLE_BYTES)
    run = take_run(data, 0, 80)
    assert run is None or 0 < run.stop <= len(data)


@given(st.lists(st.tuples(HEADERS, st.binary(max_size=60)), max_size=8), st.binary(max_size=60))
def test_server_session(frames: list[tuple[bytes, bytes]], tail: bytes) -> None:
    """Well-framed garbage, then badly framed: answers, events, perhaps a reason to close."""
    session = ServerSession(UUID, NOISE, lambda: 80)
    stream = b"".join(codec.frame(header + body) for header, body in frames)
    session.receive_data(stream + tail, 0.0)
    assert len(session.data_to_send()) >= 128


@given(st.lists(st.binary(max_size=80), max_size=8), st.sampled_from(["join", "fetch", "follow"]))
def test_follower_session(frames: list[bytes], doing: str) -> None:
    """Whatever a master sends."""
    session = ClientSession(0.0)
    session.receive_data(codec.encode_greeting(UUID, NOISE), 0.0)
    if doing == "join":
        session.join(UUID)
    elif doing == "fetch":
        session.fetch_snapshot()
    events = session.receive_data(b"".join(map(codec.frame, frames)), 0.0)
    assert len(events) <= len(frames)


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_client_session(frames: list[bytes]) -> None:
    """Whatever a server answers."""
    session = CommandSession(0.0)
    session.receive_data(codec.encode_greeting(UUID, NOISE), 0.0)
    events = session.receive_data(b"".join(map(codec.frame, frames)), 0.0)
    assert len(events) <= len(frames)


@given(st.binary(max_size=200))
def test_ballot_and_greeting(data: bytes) -> None:
    """A ballot, a greeting."""
    with contextlib.suppress(RemoteProtocolError):
        assert len(codec.decode_greeting(data).salt) == codec.SALT_BYTES
    with contextlib.suppress(RemoteProtocolError, RequestError):
        ballot = codec.decode_ballot(codec.decode_answer(data, 0, len(data)).body)
        assert 0 not in ballot.vclock
