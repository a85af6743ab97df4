"""memcached's own tests (`t/*.t` of its source package) against memcached and against us.

They speak to a server that runs (`T_MEMD_USE_DAEMON`), so what its command line would have set is
not: what fails at memcached too is left out. `OPTIONS` are those without which memcached does not
get through a script. What fails here alone is listed, and docs/tap.md says why. Not run: those of
threads, slabs, extstore, proxies and TLS, and those that take more than some seconds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.memcached import memcached

from interop.serving import Serving
from logweir.replication.protocols import parse_listen_url

SUITE = Path(sys.prefix) / "memcached-suite"
MEMCACHED = shutil.which("memcached")

pytestmark = [
    pytest.mark.skipif(MEMCACHED is None, reason="no `memcached` program on this machine"),
    pytest.mark.skipif(not SUITE.is_dir(), reason="memcached's own tests cannot be had"),
    pytest.mark.skipif(shutil.which("perl") is None, reason="no `perl` program on this machine"),
]

SAME = (
    *("binary-get", "bogus-commands", "cas", "expirations", "flags", "getandtouch", "incrdecr"),
    *("issue_104", "issue_108", "issue_152", "issue_192", "issue_3", "issue_61", "issue_70"),
    *("line-lengths", "malicious-commands", "multiversioning", "noreply", "quit", "touch"),
)
DIFFERENT = {
    "issue_29": {2, 4},  # chunks of slabs
    "issue_42": {11},  # bytes of slabs
    "metaget": {
        *(103, 108, 111),  # flags h and l
        *(150, 151, 152, 153),  # of values that are put into a file, and lost when that is full
    },
}
OPTIONS = {
    "metaget": "ext_page_size=8,ext_wbuf_size=2,ext_threads=1,ext_io_depth=2,ext_item_size=512,"
    "ext_item_age=2,ext_recache_rate=10000,ext_max_frag=0.9,slab_automove=0,ext_compact_under=1,"
    "no_lru_crawler,ext_path={}/values:64m"
}


@pytest.mark.parametrize("name", [*SAME, *DIFFERENT])
def test_a_script_of_memcached_finds_what_it_finds_there(name: str, tmp_path: Path) -> None:
    """No test of it fails here alone, but for those that are listed."""
    more = ("-o", OPTIONS[name].format(tmp_path)) if name in OPTIONS else ()
    with memcached(*more) as port:
        passed, failed_there = results(name, port, tmp_path)
    assert passed
    tap = [parse_listen_url("memcached://127.0.0.1:0")]
    with Serving(tmp_path / "store", listen=tap, guest="all") as ours:
        passed_here, failed_here = results(name, ours.port, tmp_path)
    assert failed_here - failed_there == DIFFERENT.get(name, set())
    assert passed - passed_here == DIFFERENT.get(name, set())


def test_the_binary_protocol_is_what_memcached_tests_of_it(tmp_path: Path) -> None:
    """Up to the value that is too large: memcached removes the item then, and we keep it."""
    tap = [parse_listen_url("memcached://127.0.0.1:0")]
    with Serving(tmp_path / "store", listen=tap, guest="all") as ours:
        passed, failed = results("binary", ours.port, tmp_path)
    assert len(passed) == 1542
    assert failed == {1543}


def results(name: str, port: int, scratch: Path) -> tuple[set[int], set[int]]:
    """Numbers of the tests of a script that passed and that failed at the server of `port`."""
    program = scratch / "build" / "memcached-debug"  # which it asks for what it was built with
    if not program.exists():
        program.parent.mkdir()
        program.symlink_to(MEMCACHED or "")
        (program.parent / "t").symlink_to(SUITE / "t")
    done = subprocess.run(
        ["perl", f"-I{SUITE / 't' / 'lib'}", f"t/{name}.t"],
        cwd=program.parent,
        env={**os.environ, "T_MEMD_USE_DAEMON": f"127.0.0.1:{port}"},
        capture_output=True,
        timeout=300,
        start_new_session=True,  # a handle of its own library ends its whole group
    )
    found = re.findall(rb"^(not ok|ok) (\d+)", done.stdout, re.MULTILINE)
    assert found, done.stderr.decode(errors="replace")
    passed = {int(number) for said, number in found if said == b"ok"}
    return passed, {int(number) for said, number in found} - passed
