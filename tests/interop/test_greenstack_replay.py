"""The captures of both reference libraries, replayed at our server and at our decoder."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

import logweir
from interop.gsraw import RawClient
from interop.serving import Serving
from logweir.replication.bucket.store import Buckets
from logweir.replication.greenstack.client.connection import Connection
from logweir.replication.greenstack.wire import messages
from logweir.replication.greenstack.wire.codec import Flag, Frame, FrameBuffer, Opcode, encode_frame
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.service import users
from logweir.store.schema.access import Privilege

DATA = Path(__file__).parents[1] / "data" / "greenstack"
CAPTURES = sorted(path.name.removesuffix(".c2s.bin") for path in DATA.glob("*.c2s.bin"))

# What we answer otherwise, by capture and number of the frame, and why.
OURS = {
    ("02-errors", 31): 0x0000,  # NOOP is done
    ("03-flags-lanes", 18): 0x0001,  # `more` on a GET
    ("05-library-2015", 17): 0x000D,  # that library has no AlreadyExists
}
UNALIKE = {"cas", "seqno", "vbucket_uuid", "user_agent", "user_agent_version"}


def frames(name: str, direction: str) -> list[Frame]:
    """One direction of a capture, cut."""
    found, problem = FrameBuffer().feed((DATA / f"{name}.{direction}.bin").read_bytes())
    assert problem is None
    return list(found)


def told(document: messages.Document) -> dict[str, Any]:
    """A document as the captures' notes have it."""
    return {
        "id": document.id.decode(),
        "flags": document.flags,
        "expiration": document.expiration,
        "compression": document.compression,
        "datatype": document.datatype,
        "cas": document.cas,
        "value_hex": document.value.hex(),
        "value_len": len(document.value),
    }


def payload(frame: Frame) -> Any:
    """A payload as the captures' notes have it."""
    data = frame.payload
    if frame.is_response:
        match frame.opcode:
            case Opcode.HELLO:
                hello = messages.HelloAnswer.decode(data)
                return {
                    "user_agent": hello.agent,
                    "user_agent_version": hello.version,
                    "sasl_mechanisms": hello.mechanisms,
                }
            case Opcode.SASL_AUTH:
                return {"challenge_hex": messages.decode_sasl_answer(data).hex() or None}
        if frame.status or not data:
            return None
        match frame.opcode:
            case Opcode.LIST_BUCKETS:
                return {"buckets": sorted(messages.decode_buckets(data))}
            case Opcode.MUTATION:
                answer = messages.MutationAnswer.decode(data)
                return {
                    "cas": answer.cas,
                    "size": answer.size,
                    "seqno": answer.seqno,
                    "vbucket_uuid": answer.vbucket_uuid,
                }
            case Opcode.GET:
                return {"document": told(messages.decode_get_answer(data))}
        return None
    match frame.opcode:
        case Opcode.HELLO:
            request = messages.Hello.decode(data)
            return {
                "user_agent": request.agent,
                "user_agent_version": request.version,
                "comment": request.comment,
            }
        case Opcode.SASL_AUTH:
            mechanism, challenge = messages.decode_sasl(data)
            return {"mechanism": mechanism, "challenge_hex": challenge.hex()}
        case Opcode.KEEPALIVE:
            return {"interval": messages.decode_keepalive(data)}
        case Opcode.SELECT_BUCKET:
            return {"bucket_name": messages.decode_bucket(data)}
        case Opcode.CREATE_BUCKET:
            name, config, kind = messages.decode_create(data)
            return {"name": name, "config": config, "type": kind}
        case Opcode.DELETE_BUCKET:
            name, force = messages.decode_delete(data)
            return {"bucket_name": name, "force": force}
        case Opcode.ASSUME_ROLE:
            return {"role": messages.decode_role(data)}
        case Opcode.MUTATION:
            operation, document = messages.decode_mutation(data)
            return {"operation": operation, "document": told(document)}
        case Opcode.GET:
            return {"id": messages.decode_get(data).decode()}
    return None


def same(ours: Any, noted: Any) -> bool:
    """Whether a payload is as noted; notes leave out what has its default."""
    if isinstance(ours, dict) and isinstance(noted, dict):
        return all(name in ours and same(ours[name], value) for name, value in noted.items())
    if isinstance(noted, list):
        return sorted(noted) == ours
    return bool(ours == noted)


def without(noted: Any) -> Any:
    """The notes without what no two servers have alike."""
    if isinstance(noted, dict):
        return {name: without(one) for name, one in noted.items() if name not in UNALIKE}
    return noted


@pytest.mark.parametrize("name", CAPTURES)
def test_both_directions_decode_as_noted(name: str) -> None:
    """Header, flex entries and payload of each frame; encoding it again gives its bytes."""
    notes = json.loads((DATA / f"{name}.json").read_text())["frames"]
    for direction in ("c2s", "s2c"):
        found = frames(name, direction)
        noted = [note for note in notes if note["dir"] == direction]
        assert len(found) == len(noted)
        for frame, note in zip(found, noted, strict=True):
            assert frame.opaque == int(note["opaque"], 16)
            assert frame.opcode == int(note["opcode"], 16)
            assert frame.status == (int(note["status"], 16) if "status" in note else None)
            entries = {int(one["key"], 16): one["value_hex"] for one in note.get("flex", ())}
            assert {key: value.hex() for key, value in frame.flex.items()} == entries
            assert same(payload(frame), note["payload"]), note
        whole = b"".join(map(encode_frame, found))
        assert whole == (DATA / f"{name}.{direction}.bin").read_bytes()


def prepare(folder: Path, note: dict[str, Any]) -> None:
    """A store with the capture's buckets and user."""
    with logweir.open(folder) as log:
        for bucket in note["server_buckets_at_start"]:
            Buckets(log).make(bucket)
        credentials = note["credentials"]
        users.add_user(log, credentials["user"], password=credentials["password"])
        users.grant(log, credentials["user"], ~Privilege(0), users.Target())


@pytest.mark.parametrize("name", CAPTURES)
def test_our_server_answers_as_the_captured_one(name: str, tmp_path: Path) -> None:
    """Each answer by its meaning: status, lane, payload; CRAM-MD5 with our own challenge."""
    note = json.loads((DATA / f"{name}.json").read_text())
    prepare(tmp_path / "s", note)
    listen = [parse_listen_url("greenstack://:0")]

    cas: dict[int, int] = {}
    with (
        Serving(tmp_path / "s", listen=listen) as server,
        RawClient(server.port, hello=False, bucket="") as client,
    ):
        if name.startswith("05"):
            server.server.shared.options = with_clock(server, 1_440_000_000.0)  # 2015
        requests = iter(frames(name, "c2s"))
        challenge = b""
        for number, one in enumerate(note["frames"]):
            if one["dir"] == "c2s":
                client.send(ours(next(requests), note, challenge, cas))
                continue
            answer = client.answer()
            assert answer.opaque == int(one["opaque"], 16)
            expected = OURS.get((name, number), int(one["status"], 16))
            assert answer.status == expected, one
            lane = [entry["value_hex"] for entry in one.get("flex", ()) if entry["key"] == "0x0000"]
            assert [value.hex() for value in answer.flex.values()] == lane
            if answer.opcode == Opcode.SASL_AUTH:
                challenge = messages.decode_sasl_answer(answer.payload)
                assert bool(challenge) == bool(one["payload"]["challenge_hex"])
            elif expected == int(one["status"], 16):
                wanted = without(one["payload"])
                if wanted and answer.opcode == Opcode.HELLO:
                    wanted = {}
                if wanted and "buckets" in wanted:
                    kept = set(wanted["buckets"]) | {"default"}
                    assert set(payload(answer)["buckets"]) <= kept
                    assert set(wanted["buckets"]) <= set(payload(answer)["buckets"]) | {"default"}
                else:
                    assert same(payload(answer), wanted), one
            if answer.opcode == Opcode.MUTATION and not answer.status:
                theirs = one["payload"]["cas"]
                cas[theirs] = messages.MutationAnswer.decode(answer.payload).cas


def with_clock(server: Serving, seconds: float) -> Any:
    """The server's options with a clock that stands still."""
    from dataclasses import replace

    return replace(server.server.shared.options, clock=lambda: seconds)


def ours(frame: Frame, note: dict[str, Any], challenge: bytes, cas: dict[int, int]) -> Frame:
    """A captured request with what depends on the server's answers put right."""
    data = frame.payload
    if frame.opcode == Opcode.SASL_AUTH and challenge:
        credentials = note["credentials"]
        digest = hmac.new(credentials["password"].encode(), challenge, "md5").hexdigest()
        data = messages.encode_sasl("", f"{credentials['user']} {digest}".encode())
    elif frame.opcode == Opcode.MUTATION:
        operation, document = messages.decode_mutation(data)
        if document.cas in cas:
            from dataclasses import replace

            data = replace(document, cas=cas[document.cas]).encode(operation)
    return Frame(frame.opcode, frame.opaque, data, None, frame.flags, frame.flex)


# --- the other role: our client, and the captured server ----------------------------------------


class Captured:
    """A server that says what was captured, and looks at what our client asks.

    Each request has to mean what the captured one does; what was captured behind it is answered,
    under the opaque of the client's own request. `differs`: the first request that does not.
    """

    def __init__(self, name: str, skips: int = 0) -> None:
        note = json.loads((DATA / f"{name}.json").read_text())["frames"]
        sides = {side: iter(frames(name, side)) for side in ("c2s", "s2c")}
        self._script = [(one["dir"], next(sides[one["dir"]])) for one in note][skips:]
        self._opaques: dict[int, int] = {}
        self.differs: tuple[Frame, Frame] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        peer, _ = self._listener.accept()
        buffer = FrameBuffer()
        with peer:
            while data := peer.recv(65536):
                for frame in buffer.feed(data)[0]:
                    peer.sendall(self._say(frame))

    def _say(self, asked: Frame) -> bytes:
        side, wanted = self._script.pop(0)
        assert side == "c2s"
        if not self.differs and meaning(asked) != meaning(wanted):
            self.differs = (asked, wanted)
        self._opaques[wanted.opaque] = asked.opaque
        said = b""
        while self._script and self._script[0][0] == "s2c":
            _, frame = self._script.pop(0)
            mine = self._opaques[frame.opaque]
            said += encode_frame(
                Frame(frame.opcode, mine, frame.payload, frame.status, frame.flags, frame.flex)
            )
        return said

    def close(self, left: int = 0) -> None:
        """Take no more; all frames but `left` must have been said."""
        self._thread.join(10)
        self._listener.close()
        assert self.differs is None, self.differs
        assert len(self._script) == left


def meaning(frame: Frame) -> object:
    """A frame without what is each side's own: opaque, and who says HELLO."""
    told = None if frame.opcode == Opcode.HELLO else payload(frame)
    return frame.opcode, frame.flags, dict(frame.flex), frame.status, told


def behind_hello(name: str) -> int:
    """How many frames of a capture come before its HELLO."""
    note = json.loads((DATA / f"{name}.json").read_text())["frames"]
    return next(n for n, one in enumerate(note) if one["opcode"] == "0x0001")


@pytest.mark.parametrize("name", CAPTURES)
def test_our_client_reads_the_captured_server(name: str) -> None:
    """Every captured request sent by it, every answer matched to its request and read as noted."""
    skips = behind_hello(name)
    note = json.loads((DATA / f"{name}.json").read_text())["frames"][skips:]
    requests = frames(name, "c2s")[sum(one["dir"] == "c2s" for one in note) * -1 :]
    noted = {int(one["opaque"], 16): one for one in note if one["dir"] == "s2c"}
    server = Captured(name, skips)

    async def main() -> None:
        connection = await Connection.open(parse_url(f"greenstack://127.0.0.1:{server.port}"))
        assert connection.features == frozenset()
        assert connection.agent == noted[requests[0].opaque]["payload"]["user_agent"]
        waiting = []
        for request in requests[1:]:
            (future,) = await connection.send(request)
            waiting.append((request, future))
            if request.opaque in noted:
                answer = await future
                assert answer is not None
                one = noted[request.opaque]
                assert answer.status == int(one["status"], 16)
                assert same(payload(answer), one["payload"]), one
        quiet = [request for request, future in waiting if not future.done()]
        assert all(request.flags & Flag.QUIET for request in quiet)
        connection.close()
        await connection.wait_closed()

    asyncio.run(main())
    server.close()


def test_our_client_logs_in_at_the_captured_server() -> None:
    """Of CRAM-MD5 it makes of the captured challenge what the library made of it."""
    name = "03-flags-lanes"
    credentials = json.loads((DATA / f"{name}.json").read_text())["credentials"]
    server = Captured(name)

    async def main() -> None:
        url = "greenstack://{user}:{password}@127.0.0.1".format(**credentials)
        connection = await Connection.open(parse_url(f"{url}:{server.port}/orders"))
        connection.close()
        await connection.wait_closed()

    asyncio.run(main())
    server.close(left=11)
