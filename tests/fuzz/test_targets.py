"""The targets of `tools/fuzz`: every decoder has one, and takes the inputs that are kept as it
should."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from fuzz.targets import CORPUS, TARGETS, corpus_of, run

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("wal", "recovery", "store", "replication")
WORDS = ("decode", "parse", "unpack")
ELSEWHERE = {
    "wal/blockfile.py": "a block of a file, by fixheader, zstd and block; test_recovery_fuzz",
    "wal/place.py": "what this process packed",
    "replication/synapse/wire/codec.py:decode_row_value": "what this store packed",
    "wal/selection.py": "words of the command line",
    "store/schema/decode.py": "by the targets store-space-…, which apply a definition",
    "store/engine/operation.py": "by store-operations",
    "store/schema/jsonpath.py": "by store-path",
    "replication/protocols.py": "words of the command line",
    "replication/topic/config.py": "a file of the administrator",
}
"""Modules, and functions, whose decoders are met in other ways, or read no foreign bytes."""


def decoders() -> Iterator[str]:
    """The functions of the product that read bytes, as `file:name`."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = str(path.relative_to(ROOT))
            if file in ELSEWHERE or path.stem.endswith("kernel"):
                continue
            for node in ast.parse(path.read_bytes()).body:
                inner = node.body if isinstance(node, ast.ClassDef) else [node]
                for one in inner:
                    if not isinstance(one, ast.FunctionDef) or not one.name.startswith(WORDS):
                        continue
                    if f"{file}:{one.name}" not in ELSEWHERE:
                        yield f"{file}:{one.name}"


def called(name: str) -> set[str]:
    """The functions that the inputs of a target enter, as `file:name`."""
    found: set[str] = set()

    def profile(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            file = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
            found.add(f"{file}:{frame.f_code.co_name}")

    inputs = corpus_of(name)[:40]
    sys.setprofile(profile)
    try:
        for data in inputs:
            run(TARGETS[name], data)
    finally:
        sys.setprofile(None)
    return found


def test_every_decoder_has_a_target() -> None:
    """What decodes, parses or unpacks bytes is entered by an input of a target."""
    entered = set().union(*map(called, TARGETS))
    missing = [one for one in decoders() if one not in entered]
    assert missing == []
    assert len(set(decoders())) > 30


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_are_kept_are_taken_or_refused(name: str) -> None:
    """With our errors only; each target has some that are taken."""
    assert any([run(TARGETS[name], data) for data in corpus_of(name)])


def test_what_is_kept_belongs_to_a_target() -> None:
    """No file is left of one that is gone."""
    assert {path.stem for path in CORPUS.glob("*")} <= set(TARGETS)
