"""`logweir cat`: formats, filters, damage, following a live folder."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.logs import INSTANCE, ORDERS, SPACE_ROW, insert, transaction, write_log, write_snapshot
from typer.testing import CliRunner, Result

import logweir
from logweir.tools.cli.main import app
from logweir.wal.vclock import VClock
from logweir.wal.writer import AppendPoint, WalWriter

PROGRAM = Path(sys.executable).parent / "logweir"
LOG = f"{0:020d}.xlog"
SNAP = f"{0:020d}.snap"


def cat(*arguments: str | Path) -> Result:
    """Run the command in this process; its stdout is no terminal."""
    return CliRunner().invoke(app, ["cat", *map(str, arguments)])


def rows(result: Result) -> list[dict[str, object]]:
    """The JSON lines that were printed."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def lsns(result: Result) -> list[object]:
    """The lsns of the rows that were printed."""
    return [row["lsn"] for row in rows(result)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A snapshot that knows space "orders", and six rows in four transactions."""
    write_snapshot(tmp_path, {280: [SPACE_ROW]})
    write_log(tmp_path, ORDERS)
    return tmp_path


def test_rows_are_json_lines_where_no_terminal_is(folder: Path) -> None:
    """Without options every row is one JSON object; docs/json.md names its keys."""
    result = cat(folder)
    assert result.exit_code == 0
    first, second = rows(result)[:2]
    assert first["space"] == "_space"
    assert second == {
        "file": LOG,
        "offset": second["offset"],
        "row": 0,
        "type": "INSERT",
        "replica_id": 1,
        "lsn": 2,
        "timestamp": 1700000002.0,
        "tsn": 2,
        "commit": True,
        "group_id": 0,
        "space_id": 512,
        "space": "orders",
        "tuple": [1, "apple"],
    }


def test_parts_of_each_type_are_shown(folder: Path) -> None:
    """DELETE shows its key, UPDATE key and operations, rows of one transaction their tsn."""
    by_lsn = {row["lsn"]: row for row in rows(cat(folder))}
    assert by_lsn[5]["key"] == [1]
    assert (by_lsn[6]["key"], by_lsn[6]["ops"]) == ([2], [["=", 2, "quince"]])
    assert [by_lsn[lsn]["tsn"] for lsn in (3, 4, 5)] == [3, 3, 3]
    assert [by_lsn[lsn]["commit"] for lsn in (3, 4, 5)] == [False, False, True]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--space", "orders"], [2, 3, 4, 5, 6]),
        (["--space", "280"], [1]),
        (["--space", "280", "--space", "512", "--type", "delete"], [5]),
        (["--type", "INSERT", "--type", "update", "--limit", "3"], [1, 2, 3]),
        (["--replica", "1", "--from", "3"], [3, 4, 5, 6]),
        (["--replica", "2"], []),
        (["--from", "{1: 4}"], [5, 6]),
        (["--from", "1:5"], [5, 6]),
        (["--to", "2"], [1, 2]),
        (["--from", "2", "--to", "{1: 3}"], [2, 3]),
        (["--since", "2023-11-14T22:13:23"], [3, 4, 5, 6]),
        (["--until", "1700000002"], [1, 2]),
        (["--limit", "0"], []),
    ],
)
def test_filters_leave_what_they_name(
    folder: Path, options: list[str], expected: list[int]
) -> None:
    """Each filter, and several together."""
    result = cat(folder, *options)
    assert result.exit_code == 0
    assert lsns(result) == expected


@pytest.mark.parametrize(
    "options",
    [
        ["--from", "yesterday"],
        ["--to", "{1: 2"],
        ["--since", "soon"],
        ["--type", "insrt"],
        ["--format", "xml"],
        ["--limit", "-1"],
        ["--replica", "x"],
        ["--follow", "--hex"],
    ],
)
def test_wrong_values_are_wrong_usage(folder: Path, options: list[str]) -> None:
    """A value that cannot be is exit code 2, named on stderr; nothing is printed."""
    result = cat(folder, *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr != ""


@pytest.mark.parametrize("style", ["jsonl", "hex"])
def test_space_that_nothing_names_is_told(folder: Path, style: str) -> None:
    """A name that no file knows is likely a slip: a warning says so, and which names there are.
    One that is known, or is an id, is not warned of, also where it has no rows."""
    result = cat(folder, "--format", style, "--space", "oders")
    assert result.exit_code == 0
    assert "apple" not in result.stdout
    expected = "logweir: warning: no space has the name 'oders' in what was read; it has: orders\n"
    assert result.stderr == expected
    quiet = cat(folder, "--format", style, "--space", "_truncate", "--space", "orders")
    assert quiet.stderr == ""
    assert cat(folder, "--format", style, "--space", "4711").stderr == ""


def test_raw_adds_the_exact_bytes(folder: Path) -> None:
    """--raw gives key, tuple and operations as hexadecimal MsgPack too."""
    by_lsn = {row["lsn"]: row for row in rows(cat("--raw", folder))}
    assert by_lsn[2]["tuple_mp"] == "9201a56170706c65"
    assert by_lsn[5]["key_mp"] == "9101"
    assert by_lsn[6]["ops_mp"] == "9193a13d02a67175696e6365"


def test_yaml_is_one_document_per_row(folder: Path) -> None:
    """Each row is a document of names and values in flow form."""
    documents = cat("--format", "yaml", folder).stdout.split("---\n")[1:]
    assert len(documents) == 6
    assert 'space: "orders"\n' in documents[1]
    assert "timestamp: 1700000002.0\n" in documents[1]
    assert 'tuple: [1, "apple"]\n' in documents[1]
    assert "commit: true\n" in documents[1]


def test_table_brackets_the_rows_of_a_transaction(folder: Path) -> None:
    """Rows of one transaction are joined at the left; others stand alone."""
    lines = cat("--format", "table", folder).stdout.splitlines()
    assert lines[0] == LOG
    marks = [line.split()[1] if line.split()[1] in "┌│└" else "" for line in lines[2:]]
    assert marks == ["", "", "┌", "│", "└", ""]
    assert "2023-11-14 22:13:22.000" in lines[3]
    assert lines[3].split("INSERT")[1].split() == ["orders", "[1,", '"apple"]']


def test_table_obeys_the_width_of_the_terminal(tmp_path: Path) -> None:
    """On a terminal rows are a table by default, and no line is wider than it; on a narrow one the
    data has a line of its own."""
    write_log(tmp_path, [[insert(512, [1, "x" * 1000, "\x1b[2J"])]])
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "90", "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen([PROGRAM, "cat", tmp_path], stdout=theirs, env=environment) as process:
        os.close(theirs)
        printed = read_all(ours).decode()
        assert process.wait() == 0
    lines = printed.splitlines()
    assert lines[0] == LOG
    assert max(map(len, lines)) == 90
    assert lines[2].endswith("  INSERT   512")
    assert lines[3].startswith('    [1, "xxx')
    assert lines[3].endswith("…")
    assert "\x1b" not in printed


@pytest.mark.parametrize("format_name", ["jsonl", "yaml", "table"])
def test_a_terminal_is_told_nothing_that_it_would_obey(format_name: str, tmp_path: Path) -> None:
    """C1 controls and marks that turn the direction of writing come out as escapes."""
    odd = "\x9b2J \x7f \u202e \u2066"
    write_log(tmp_path, [[insert(512, [1, odd])]])
    ours, theirs = pty.openpty()
    command = [PROGRAM, "cat", "--format", format_name, tmp_path]
    environment = {**os.environ, "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=theirs, env=environment) as process:
        os.close(theirs)
        printed = read_all(ours).decode()
        assert process.wait() == 0
    assert not set(printed) & set("\x9b\x7f\u202e\u2066")
    assert "2J" in printed
    assert json.loads(cat(tmp_path).stdout)["tuple"][1] == odd  # a program gets what is there


def read_all(fd: int) -> bytes:
    """Everything that comes out of a terminal until its other end is closed."""
    data = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:  # how Linux tells that the other end is closed
            piece = b""
        if not piece:
            os.close(fd)
            return data
        data += piece


def test_snapshot_is_shown_when_it_is_named(folder: Path) -> None:
    """A folder's logs are shown; a snapshot's rows only if the snapshot is asked for."""
    assert {row["file"] for row in rows(cat(folder))} == {LOG}
    (row,) = rows(cat(folder / SNAP))
    assert (row["file"], row["lsn"], row["space"]) == (SNAP, 0, "_space")


def test_several_paths_are_shown_one_after_the_other(folder: Path) -> None:
    """Paths are taken in their order, and a limit counts over all."""
    result = cat(folder / LOG, folder / SNAP, "--limit", "7")
    assert [row["file"] for row in rows(result)] == [LOG] * 6 + [SNAP]


def test_rows_behind_damage_are_shown_and_the_damage_named(folder: Path) -> None:
    """Damage is a warning on stderr, reading goes on, the exit code is 3."""
    path = folder / LOG
    data = bytearray(path.read_bytes())
    data[data.index(b"apple")] ^= 0xFF
    path.write_bytes(data)
    for place in (folder, path):
        result = cat(place)
        assert result.exit_code == 3
        assert lsns(result) == [1, 3, 4, 5, 6]
        assert "between lsn 1 and 3" in result.stderr
        assert "checksum" in result.stderr


def test_unfinished_write_is_a_note(folder: Path) -> None:
    """A torn end is told, but is no damage."""
    path = folder / LOG
    path.write_bytes(path.read_bytes()[:-7])
    result = cat(folder)
    assert result.exit_code == 0
    assert lsns(result) == [1, 2, 3, 4, 5]
    assert "note: " in result.stderr
    assert cat("--quiet", folder).stderr == ""


def test_missing_file_is_a_gap(tmp_path: Path) -> None:
    """Rows that are missing between two files are damage."""
    write_log(tmp_path, [[insert(512, [n])] for n in range(3)], max_bytes=2)
    (tmp_path / f"{1:020d}.xlog").unlink()
    result = cat(tmp_path)
    assert result.exit_code == 3
    assert lsns(result) == [1, 3]
    assert "gap" in result.stderr


def test_unusable_file_of_a_folder_is_damage(folder: Path) -> None:
    """A log whose header cannot be read is named; the others are shown."""
    (folder / f"{6:020d}.xlog").write_bytes(b"XLOG\n0.99\n\n")
    result = cat(folder)
    assert result.exit_code == 3
    assert lsns(result) == [1, 2, 3, 4, 5, 6]
    assert "0.99" in result.stderr


def dump_bytes(text: str, *, packed: bool) -> dict[int, int]:
    """Address to byte of the lines of a dump that are (not) `packed`."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        head, data = line[:9].strip(), line[11:46]
        if head and head.startswith("+") is packed:
            at = int(head.removeprefix("+"), 16)
            for i, value in enumerate(bytes.fromhex(data)):
                assert at + i not in found
                found[at + i] = value
    return found


def test_hex_shows_every_byte_of_the_file_once(folder: Path) -> None:
    """With --raw the dump is the whole file, no byte left out and none twice."""
    result = cat("--hex", "--raw", folder / LOG)
    assert result.exit_code == 0
    shown = dump_bytes(result.stdout, packed=False)
    data = (folder / LOG).read_bytes()
    assert bytes(shown[at] for at in range(len(data))) == data
    assert len(shown) == len(data)


def test_hex_says_what_the_bytes_mean(folder: Path) -> None:
    """Header, parts of a block, keys with names and values, and the EOF marker are explained."""
    printed = cat("--hex", folder / LOG).stdout
    for meaning in (
        "header: VClock: {}",
        "block, rows as they are",
        "length: ",
        ", matches",
        "row 1 of 3, header: map of 5",
        "type: 2 INSERT",
        "lsn: 2",
        "1700000002.0 = 2023-11-14 22:13:22",
        "lsn minus transaction id: 1, so transaction 3",
        "flags: 1, COMMIT",
        "space id: 512 orders",
        "index base: 1",
        "operations: array of 1",
        '"quince"',
        "EOF marker",
    ):
        assert meaning in printed


@pytest.mark.parametrize("style", ["hex", "jsonl", "table", "yaml"])
def test_letters_that_a_terminal_would_obey_are_escaped(style: str, tmp_path: Path) -> None:
    """C1 control characters and turns of the direction of writing, in what people read."""
    write_log(tmp_path, [[insert(512, [1, "a\u009b2Jb\u202ec é"])]])
    printed = cat("--format", style, tmp_path / LOG).stdout
    assert "2Jb" in printed
    assert all(letter.isprintable() or letter == "\n" for letter in printed)
    assert ("é" in printed) == (style != "yaml")


def test_hex_shows_rows_of_a_compressed_block_unpacked(tmp_path: Path) -> None:
    """The stored bytes of a zstd block and its unpacked rows are both there, told apart."""
    write_log(tmp_path, [[insert(512, [1, "x" * 5000])]])
    result = cat("--hex", "--raw", tmp_path / LOG)
    assert "unpacks to 50" in result.stdout
    stored = dump_bytes(result.stdout, packed=False)
    data = (tmp_path / LOG).read_bytes()
    assert bytes(stored[at] for at in sorted(stored)) == data
    rows_bytes = dump_bytes(result.stdout, packed=True)
    assert bytes(rows_bytes[at] for at in sorted(rows_bytes)) == transaction(
        1, [insert(512, [1, "x" * 5000])]
    )


def test_hex_shows_damaged_bytes_as_such(folder: Path) -> None:
    """A damaged stretch is dumped, named, and what follows it is explained again."""
    path = folder / LOG
    data = bytearray(path.read_bytes())
    data[data.index(b"apple")] ^= 0xFF
    path.write_bytes(data)
    result = cat("--hex", "--raw", path)
    assert result.exit_code == 3
    assert "damage: checksum" in result.stdout
    shown = dump_bytes(result.stdout, packed=False)
    assert bytes(shown[at] for at in range(len(data))) == bytes(data)


def test_hex_takes_filters_and_limits(folder: Path) -> None:
    """Only wanted rows are explained, whatever the format."""
    assert cat("--hex", "--type", "update", folder / LOG).stdout.count("type: ") == 1
    assert cat("--hex", "--limit", "2", folder).stdout.count("type: ") == 2


def follow(folder: Path, *options: str) -> subprocess.Popen[str]:
    """A `cat --follow` that is running."""
    return subprocess.Popen(
        [PROGRAM, "cat", "--follow", *options, folder],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def in_time(process: subprocess.Popen[str], action: Callable[[], object]) -> None:
    """Run `action`, which reads from the process; kill the process if that takes too long."""
    timer = threading.Timer(30, process.kill)
    timer.start()
    try:
        action()
    finally:
        timer.cancel()


def test_follow_goes_on_as_the_log_grows_and_rotates(tmp_path: Path) -> None:
    """Rows written after the start are printed, in order, across files, until the limit."""
    reached = write_log(tmp_path, ORDERS[:2])
    with follow(tmp_path, "--limit", "5") as process:
        assert process.stdout is not None
        got = []

        def read_and_write() -> None:
            nonlocal reached
            assert process.stdout is not None
            got.extend(json.loads(process.stdout.readline())["lsn"] for _ in range(2))
            for number in range(3):
                reached = write_log(tmp_path, [[insert(512, [number])]], start=reached)
            got.extend(json.loads(line)["lsn"] for line in process.stdout)

        in_time(process, read_and_write)
        assert process.wait() == 0
    assert got == [1, 2, 3, 4, 5]


def test_follow_begins_at_a_vclock_and_waits_for_the_first_file(tmp_path: Path) -> None:
    """An empty folder may be followed; rows that the given vclock holds are not printed."""
    with follow(tmp_path, "--from", "{1: 1}", "--limit", "1") as process:
        assert process.stdout is not None
        write_log(tmp_path, [[insert(512, [n])] for n in range(2)])
        lines: list[str] = []
        in_time(process, lambda: lines.extend(process.stdout or ()))
        assert process.wait() == 0
    assert [json.loads(line)["lsn"] for line in lines] == [2]


def test_follow_never_shows_an_unfinished_write(tmp_path: Path) -> None:
    """Half a block is not printed; when it is cut off and written anew the new rows are."""
    writer = WalWriter(tmp_path, INSTANCE, AppendPoint(VClock()))
    writer.write([transaction(1, [insert(512, [1])])], VClock({1: 1}))
    writer.sync()
    path = tmp_path / LOG
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes.fromhex("d5ba0bab28"))
    with follow(tmp_path, "--limit", "2") as process:
        got: list[int] = []

        def read_and_write() -> None:
            assert process.stdout is not None
            got.append(json.loads(process.stdout.readline())["lsn"])
            os.truncate(path, whole)
            writer.write([transaction(2, [insert(512, [2])])], VClock({1: 2}))
            writer.close()
            got.extend(json.loads(line)["lsn"] for line in process.stdout)

        in_time(process, read_and_write)
        assert process.wait() == 0
    assert got == [1, 2]


@pytest.mark.kill
def test_interrupt_ends_following_with_130(folder: Path) -> None:
    """Ctrl-C ends a command with exit code 130 and no traceback."""
    with follow(folder) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()  # it runs
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == ""
        assert process.wait() == 130


@pytest.fixture
def collected(tmp_path: Path) -> Path:
    """A store whose oldest log that is left begins behind its first rows."""
    with logweir.open(
        tmp_path, checkpoint_count=1, checkpoint_interval=0, wal_max_size=2000
    ) as log:
        log.create_space("t", format=[("id", "unsigned"), ("text", "string")])
        for number in range(100):
            log.insert("t", (number, "x" * 50))
        log.snapshot()
        log.insert("t", (1000, "last"))
    return tmp_path


def oldest_left(folder: Path) -> int:
    """The last lsn that no log holds any more."""
    return int(min(folder.glob("*.xlog")).stem)


@pytest.mark.parametrize("options", [[], ["-f"]], ids=["once", "follow"])
@pytest.mark.parametrize("form", ["1:{0}", "{{1: {1}}}", "{0}", "{{}}", "1:5"])
def test_start_before_the_oldest_log_is_refused(
    form: str, options: list[str], collected: Path
) -> None:
    """In every form of a position: exit code 1, where the log begins, and not one row."""
    at = oldest_left(collected)
    assert at > 5
    start = form.format(at, at - 1)
    result = cat(collected, "--from", start, *options)
    assert result.exit_code == 1
    assert f"which holds {{1: {at}}} to the newest row" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("form", ["1:{1}", "{{1: {0}}}", "{1}"])
def test_start_at_the_oldest_log_is_taken(form: str, collected: Path) -> None:
    """From the first row on that is left, all are there."""
    at = oldest_left(collected)
    result = cat(collected, "--from", form.format(at, at + 1))
    assert result.exit_code == 0
    assert lsns(result) == list(range(at + 1, 105))


def test_time_before_the_oldest_log_is_refused(collected: Path) -> None:
    """Rows of that time may have been removed; from the oldest row's time on all are there."""
    first = float(str(rows(cat(collected))[0]["timestamp"]))
    result = cat(collected, "--since", str(first - 1))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert cat(collected, "--since", repr(first)).exit_code == 0
    assert cat(collected, "-f", "--limit", "1", "--since", str(first - 1)).exit_code == 1


def test_time_before_a_log_that_is_whole_from_its_beginning_is_taken(folder: Path) -> None:
    """There is nothing before it."""
    result = cat(folder, "--since", "2000-01-01")
    assert result.exit_code == 0
    assert len(rows(result)) == 6
