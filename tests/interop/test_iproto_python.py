"""tarantool-python's own tests next to a real Tarantool, and what differs here.

Not run: its tests of SQL and crud, which are not here, of TLS and dates, which 2.6 has not, and of
pools and meshes of servers, which take minutes; docs/tarantool.md says what they gave by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from interop import tarantoolsuite

SUITE = Path(sys.prefix) / "tarantool-python-suite"
MODULES = (
    *("connection", "decimal", "dml", "encoding", "error_ext", "protocol", "reconnect", "schema"),
    "uuid",
)
DIFFERENT = {
    "EVAL": (
        *("connection.custom_packer", "connection.custom_packer_supersedes_encoding"),
        *("connection.custom_unpacker", "connection.custom_unpacker_supersedes_use_list"),
        *("decimal.tarantool_encode", "decimal.tarantool_encode_with_legacy_precision_loss"),
        *("dml.08_eval", "dml.14_extra_error_info", "dml.15_extra_error_info_stacked"),
        *("dml.16_extra_error_info_fields", "uuid.tarantool_encode"),
        "encoding.01_02_string_decode_for_encoding_utf8_behavior",
        "encoding.01_05_error_extra_info_decode_for_encoding_utf8_behavior",
        "encoding.02_02_string_decode_for_encoding_none_behavior",
        "encoding.02_05_error_extra_info_decode_for_encoding_none_behavior",
    ),
    "functions in Lua": (
        *("dml.07_call_16", "dml.07_call_17"),
        "schema.Binary.08_schema_fetch_disable_via_connection",
        "schema.Binary.08_schema_fetch_disable_via_connection_pool",
        "schema.Binary.08_schema_fetch_disable_via_mesh_connection",
        "schema.Unicode.08_schema_fetch_disable_via_connection",
        "schema.Unicode.08_schema_fetch_disable_via_connection_pool",
        "schema.Unicode.08_schema_fetch_disable_via_mesh_connection",
    ),
    "SQL": (
        "connection.custom_unpacker_supersedes_encoding",
        "encoding.01_04_varbinary_decode_for_encoding_utf8_behavior",
        "encoding.02_04_varbinary_decode_for_encoding_none_behavior",
    ),
    "ID is answered": ("protocol.04_protocol",),
}


@pytest.mark.tarantool
@pytest.mark.skipif(not SUITE.is_dir(), reason="tarantool-python's own tests cannot be had")
def test_its_own_tests_find_what_they_find_there(tmp_path: Path) -> None:
    """Every one that is passed there is passed here, but for those that are listed."""
    running = {side: start(side, tmp_path / side) for side in ("there", "here")}
    told = {side: json.loads(one.communicate(timeout=100)[0]) for side, one in running.items()}
    there, here = told["there"], told["here"]
    assert set(there.values()) == {"ok", "skipped"}
    assert list(there.values()).count("ok") == 95
    different = {name for name in there if here.get(name) != there[name]}
    assert different == {name for names in DIFFERENT.values() for name in names}


def start(side: str, folder: Path) -> subprocess.Popen[str]:
    """The tests on one side, begun."""
    folder.mkdir()
    (folder / "test").symlink_to(SUITE / "test")
    tests = str(Path(__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-P", tarantoolsuite.__file__, side, *MODULES],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": tests},
        stdout=subprocess.PIPE,
        text=True,
    )
