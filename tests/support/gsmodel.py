"""What tests of Greenstack share: the samples of the reference libraries, and a server session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.tapmodel import NOW, MemoryBucket, Users

from logweir.replication.greenstack.serve.commands import Executor
from logweir.replication.greenstack.serve.lanes import Pending
from logweir.replication.greenstack.serve.runs import RequestRun
from logweir.replication.greenstack.server_session import Event, ServerSession, Settings
from logweir.replication.greenstack.wire.codec import Frame, FrameBuffer, Opcode, encode_frame
from logweir.replication.greenstack.wire.messages import Feature, Hello

DATA = Path(__file__).parent.parent / "data" / "greenstack"
CAPTURES = sorted(path.name.removesuffix(".c2s.bin") for path in DATA.glob("*.c2s.bin"))


def vectors() -> dict[str, dict[str, Any]]:
    """The single frames by name."""
    found = json.loads((DATA / "vectors.json").read_text())["vectors"]
    return {one["name"]: one for one in found}


def spellings(vector: dict[str, Any]) -> list[bytes]:
    """The bytes of one vector, as each library and an independent codec writes it."""
    names = ("hex_2017", "hex_2015", "hex_independent")
    texts = [vector.get(name, "same") for name in names]
    return [bytes.fromhex(text) for text in texts if text != "same"]


def malformed() -> dict[str, dict[str, str]]:
    """The edge cases by name."""
    found = json.loads((DATA / "malformed.json").read_text())["cases"]
    return {one["name"]: one for one in found}


def sent(name: str, direction: str) -> bytes:
    """All bytes of one direction of a capture."""
    return (DATA / f"{name}.{direction}.bin").read_bytes()


def frames(data: bytes) -> Sequence[Frame]:
    """The whole frames of some bytes."""
    buffer = FrameBuffer()
    found, problem = buffer.feed(data)
    assert problem is None
    assert len(buffer) == 0
    return found


class Server:
    """A server session whose requests run on a bucket in memory, in the order in which they come.

    Requests that need a store but no bucket are answered with nothing.
    """

    def __init__(self, *mechanisms: str, hello: bool = True, plain: bool = True) -> None:
        settings = Settings(
            credentials=Users(*mechanisms),
            random=bytes,
            clock=lambda: NOW,
            version="1",
            plain=plain,
        )
        self.session = ServerSession(settings, 0.0)
        self.bucket = MemoryBucket()
        self.events: list[Event] = []
        if hello:
            payload = Hello("test", "1", "", tuple(Feature)).encode()
            self.ask(Frame(Opcode.HELLO, payload=payload))

    def feed(self, data: bytes, now: float = 0.0) -> bytes:
        """What is answered to some bytes."""
        executor = Executor(self.bucket, NOW, uuid=7)
        for event in self.session.receive_data(data, now):
            self.events.append(event)
            if not isinstance(event, Pending):
                continue
            if event.answer is not None:
                self.session.put(event.answer)
                continue
            frame = event.frame
            for one in frame.frames() if isinstance(frame, RequestRun) else (frame,):
                if one.opcode in (Opcode.MUTATION, Opcode.GET, Opcode.REMOVE):
                    self.session.answer(one, *executor.execute(one))
        return self.session.data_to_send()

    def ask(self, *requests: Frame) -> Sequence[Frame]:
        """What comes back for some requests."""
        return frames(self.feed(b"".join(map(encode_frame, requests))))

    def status(self, request: Frame) -> int | None:
        """The status of the one answer to a request."""
        (answer,) = self.ask(request)
        return answer.status
