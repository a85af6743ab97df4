"""The page on Greenstack's wire is true, and enough to write a client after it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from enum import IntEnum, IntFlag
from pathlib import Path
from typing import Any

import pytest

from interop.gsraw import RawClient, mutation
from interop.serving import Serving
from logweir.replication.greenstack.wire import many, messages
from logweir.replication.greenstack.wire.codec import (
    Flag,
    FlexKey,
    Opcode,
    Status,
    decode_frames,
    encode_frame,
)
from logweir.replication.protocols import parse_listen_url
from logweir.tools.vectors import payload_fields, payload_of

DOCS = Path(__file__).parents[2] / "docs"
OWN = 0x0C00
"""From this number on opcodes and statuses are of the extension, and keys from 0x8000 on."""


@pytest.fixture
def serving(tmp_path: Path) -> Serving:
    """A server of buckets that lets guests do everything."""
    return Serving(
        tmp_path / "s", listen=[parse_listen_url("greenstack://127.0.0.1:0")], guest="all"
    )


def page() -> str:
    """The page."""
    return (DOCS / "greenstack-wire.md").read_text()


def known(kind: type[IntEnum], end: int) -> dict[int, str]:
    """Those that are not of the extension."""
    return {one.value: one.name for one in kind if one < end}


@pytest.mark.parametrize(
    ("kind", "section", "end"),
    [(FlexKey, "Frame", 0x8000), (Opcode, "Opcodes", OWN), (Status, "Statuses", OWN)],
)
def test_every_number_stands_in_its_table(kind: type[IntEnum], section: str, end: int) -> None:
    text = page().partition(f"## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (0x[0-9a-f]{4}) \| ([A-Z_]+) \|", text, re.MULTILINE)
    assert {int(number, 16): name for number, name in rows} == known(kind, end)


def test_every_flag_stands_in_its_table() -> None:
    flags: type[IntFlag] = Flag
    rows = re.findall(r"^\| ([a-z]+) \| (0x[0-9a-f]{2}) \|", page(), re.MULTILINE)
    assert {name: int(mask, 16) for name, mask in rows} == {
        one.name.lower(): one.value for one in flags if one.name
    }


def conversation() -> list[tuple[str, bytes]]:
    """Who sends what, by the page."""
    block = page().partition("```text\n")[2].partition("```")[0]
    turns: list[tuple[str, bytes]] = []
    for line in block.splitlines():
        digits = re.match(r"[<> ] ((?:[0-9a-f]{2,} ?)+)(?:  |$)", line)
        assert digits is not None, line
        data = bytes.fromhex(digits[1])
        if line[0] == " ":
            side, begun = turns.pop()
            turns.append((side, begun + data))
        else:
            turns.append((line[0], data))
    return turns


def test_the_conversation_of_the_page_goes_so(serving: Serving) -> None:
    """Answers are as they stand there; of the first one the head."""
    seen = 0
    with serving as server, socket.create_connection(("127.0.0.1", server.port), 10) as peer:
        stream = peer.makefile("rb")
        for side, data in conversation():
            if side == ">":
                assert int.from_bytes(data[:4], "big") == len(data) - 4
                peer.sendall(data)
                continue
            size = stream.read(4)
            answer = size + stream.read(int.from_bytes(size, "big"))
            assert answer[: len(data)] == data
            assert len(answer) == len(data) or not seen
            seen += 1
    assert seen == 6


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client in C++, built as its first lines say."""
    for tool in ("flatc", "g++"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on this machine")
    folder = tmp_path_factory.mktemp("client")
    subprocess.run(
        ["flatc", "--cpp", "--reflect-names", "-o", folder, DOCS / "greenstack.fbs"], check=True
    )
    source = DOCS / "examples" / "greenstack.cc"
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", folder, source]
    subprocess.run([*command, "-o", folder / "greenstack"], check=True)
    return folder / "greenstack"


def run(program: Path, port: int) -> list[str]:
    """What it prints."""
    command = [program, str(port), "feed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_a_client_in_another_language_changes_reads_and_follows(
    program: Path, serving: Serving
) -> None:
    """More than a window of documents, each once; what it wrote is in the store."""
    with serving as server:
        with RawClient(server.port) as client:
            client.send(*(mutation(b"k%04d" % n, b"%04d" % n * 200) for n in range(1500)))
            assert [client.answer().status for _ in range(1500)] == [0] * 1500
        lines = run(program, server.port)
        stored = {row[0]: row[2] for row in server.log.select("default")}
    assert lines[1:5] == [
        "set one: got a CAS",
        "set two: got a CAS",
        "get one: 1",
        "get none: status 0x0008",
    ]
    marks = [line for line in lines[5:] if not line.startswith("default ")]
    assert marks == ["mark 1", "mark 2", "mark 3", "closed with 0x0000"]
    changes = [line[8:].split(" = ") for line in lines if line.startswith("default ")]
    followed = dict(changes)
    assert len(changes) == len(followed)
    documents = {key.encode(): value.encode() for key, value in followed.items()}
    assert len(documents) == 1502
    assert documents == stored


# --- the vectors --------------------------------------------------------------------------------


def vectors() -> list[dict[str, Any]]:
    """Those of the documentation."""
    made = json.loads((DOCS / "vectors" / "greenstack.json").read_text())
    found: list[dict[str, Any]] = made["vectors"]
    return found


def test_the_vectors_say_what_our_decoders_read() -> None:
    """Head, entries and payload of each; together every opcode, and every table of the schema."""
    tables, opcodes = set(), set()
    for vector in vectors():
        (frame,), taken, _, problem = decode_frames(bytes.fromhex(vector["hex"]))
        assert (problem, taken) == (None, len(vector["hex"]) // 2)
        assert encode_frame(frame).hex() == vector["hex"]
        assert (frame.opaque, frame.opcode, frame.status) == (
            vector["opaque"], vector["opcode"], vector.get("status"),
        )  # fmt: skip
        bits = frame.flags | frame.is_response * Flag.RESPONSE | bool(frame.flex) * Flag.FLEX
        assert bits == vector["flags"]
        flex = {int(key, 16): bytes.fromhex(value) for key, value in vector.get("flex", {}).items()}
        assert frame.flex == flex
        assert frame.wrong_key() is None
        opcodes.add(frame.opcode)
        fields = dict(vector.get("payload", {}))
        if fields:
            name = fields.pop("table")
            tables.add(name)
            assert payload_fields(name, frame.payload) == fields
        else:
            assert frame.payload == b""
    assert opcodes == set(Opcode)
    parts = {"DocumentInfo", "Document", "Position", "Found"}
    assert tables | parts == {table.name for table in (*messages.TABLES, *many.TABLES)}


def as_in_the_file(value: Any) -> Any:
    """What the client in C++ prints of a payload, as the vectors have it: bytes in hex."""
    if isinstance(value, dict):
        return {
            name: bytes(one).hex() if name in ("value", "challenge") else as_in_the_file(one)
            for name, one in value.items()
        }
    return [as_in_the_file(one) for one in value] if isinstance(value, list) else value


def test_a_client_in_another_language_reads_the_vectors_as_they_say(program: Path) -> None:
    """Its verifier takes each payload, and it finds in each what stands there."""
    lines = "".join(vector["hex"] + "\n" for vector in vectors())
    done = subprocess.run(
        [program, "decode"], input=lines, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for vector, line in zip(vectors(), done.stdout.splitlines(), strict=True):
        told = json.loads(line)
        payload = dict(vector.pop("payload", {}))
        if payload:
            name = payload.pop("table")
            fields = as_in_the_file(told.pop("payload"))
            assert payload_fields(name, payload_of(name, fields)) == payload, vector["name"]
        else:
            assert told.pop("payload") is None
        assert {"flex": {}, **{key: vector[key] for key in told if key in vector}} == told
