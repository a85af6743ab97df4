"""Programs of others that speak to a memcached find here what they find there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from support.memcached import memcached

from interop import nodeclients
from interop.serving import Serving
from logweir.replication.protocols import parse_listen_url

MEMCCAPABLE = shutil.which("memccapable")
MEMASLAP = shutil.which("memaslap") or shutil.which("memcaslap")  # as Debian calls it


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a server of ours."""
    listen = [parse_listen_url("memcached://127.0.0.1:0")]
    folder = tmp_path_factory.mktemp("programs")
    with Serving(folder / "store", listen=listen, guest="all") as server:
        yield server.port


@pytest.mark.skipif(MEMCCAPABLE is None, reason="no `memccapable` program on this machine")
def test_memccapable_finds_all_of_both_protocols(port: int) -> None:
    """libmemcached's test of what a server can do, by lines (27 tests) and by packets (27)."""
    for protocol in ("-a", "-b"):
        done = subprocess.run(
            [str(MEMCCAPABLE), "-h", "127.0.0.1", "-p", str(port), "-t", "20", protocol],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.count("[pass]") == 27, done.stdout + done.stderr
        assert done.stdout.endswith("All tests passed\n"), done.stdout + done.stderr


@pytest.mark.skipif(MEMASLAP is None, reason="no `memaslap` program on this machine")
@pytest.mark.parametrize("options", [("-v", "0.1"), ("-B", "-d", "8")], ids=["lines", "packets"])
def test_the_load_of_memaslap_loses_nothing(port: int, options: tuple[str, ...]) -> None:
    """By lines with a tenth of the values compared, and by packets, eight in flight."""
    done = subprocess.run(
        [str(MEMASLAP), "-s", f"127.0.0.1:{port}", "-T", "1", "-c", "8", "-x", "4000", *options],
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert (told["cmd_get"], told["cmd_set"]) == ("3600", "400"), done.stdout + done.stderr
    wrong = [told.get(name, "0") for name in ("get_misses", "verify_misses", "verify_failed")]
    assert wrong == ["0"] * 3, done.stdout


@nodeclients.needed
@pytest.mark.skipif(shutil.which("memcached") is None, reason="no `memcached` on this machine")
def test_clients_of_npm_are_answered_as_by_memcached(port: int) -> None:
    """Every call of memcached and of memjs, those that are refused, too."""
    with memcached() as theirs:
        there = nodeclients.told("memcached.js", theirs)
    assert ["get", "one"] in there
    assert nodeclients.told("memcached.js", port) == there
