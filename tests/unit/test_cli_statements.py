"""One statement from the shell, and rows as JSON lines, on a folder."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.waiting import until
from typer.testing import CliRunner, Result

import logweir
from logweir.tools.cli.main import app
from logweir.wal.mp import Ext

PROGRAM = Path(sys.executable).parent / "logweir"


def run(*arguments: object, stdin: str | bytes = "") -> Result:
    """Run the program in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin)


def rows(result: Result) -> list[Any]:
    """The JSON lines that were printed; it must have gone well."""
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a space of users."""
    path = tmp_path / "store"
    with logweir.open(path) as log:
        log.create_space(
            "users",
            format=[
                ("id", "unsigned"),
                ("name", "string"),
                {"name": "age", "type": "unsigned", "is_nullable": True},
            ],
            indexes={"name": {"parts": ["name"]}, "age": {"parts": ["age"], "unique": False}},
        )
        log.create_space("bare")
    return path


def content(store: Path, space: str = "users") -> list[Any]:
    """What the space holds."""
    with logweir.open(store, create=False) as log:
        return log.select(space)


def test_each_statement_prints_the_tuple(store: Path) -> None:
    """Insert, replace, update, upsert, get, delete; arrays and objects."""
    assert rows(run("insert", store, "users", '[1, "ada", 36]')) == [[1, "ada", 36]]
    assert rows(run("insert", store, "users", '{"name": "bob", "id": 2}')) == [[2, "bob"]]
    assert rows(run("replace", store, "users", '[2, "bert"]', "--names")) == [
        {"id": 2, "name": "bert"}
    ]
    assert rows(run("update", store, "users", "1", '[["+", "age", 1], ["=", 1, "Ada"]]')) == [
        [1, "Ada", 37]
    ]
    assert rows(run("upsert", store, "users", '[3, "c", 1]', '[["+", "age", 1]]')) == []
    assert rows(run("upsert", store, "users", '[3, "c", 1]', '[["+", "age", 1]]')) == []
    assert rows(run("get", store, "users", "[3]")) == [[3, "c", 2]]
    assert rows(run("get", store, "users", '"bert"', "--index", "name")) == [[2, "bert"]]
    assert rows(run("delete", store, "users", '"c"', "--index", "name")) == [[3, "c", 2]]
    assert content(store) == [(1, "Ada", 37), (2, "bert")]


def test_select_takes_key_iterator_limit_and_offset(store: Path) -> None:
    """In the order of any index, by its name or number."""
    with logweir.open(store) as log:
        log.append("users", [(n, f"u{n}", n % 3) for n in range(10)])
    chosen = ("select", store, "users")
    assert [row[0] for row in rows(run(*chosen))] == list(range(10))
    assert [row[0] for row in rows(run(*chosen, "--key", "1", "--index", "age"))] == [1, 4, 7]
    ge = rows(run(*chosen, "--key", "[1]", "--iterator", "ge", "--index", "2", "--limit", "4"))
    assert [row[0] for row in ge] == [1, 4, 7, 2]
    assert [row[0] for row in rows(run(*chosen, "--iterator", "lt", "--key", "3"))] == [2, 1, 0]
    assert [row[0] for row in rows(run(*chosen, "--offset", "8"))] == [8, 9]
    assert rows(run(*chosen, "--limit", "1", "--names")) == [{"id": 0, "name": "u0", "age": 0}]


@pytest.mark.parametrize("command", ["get", "delete", "update"])
def test_a_key_that_is_not_there_is_exit_code_1(store: Path, command: str) -> None:
    """Nothing is on stdout, and stderr says why."""
    more = ['[["=", 1, "x"]]'] if command == "update" else []
    done = run(command, store, "users", "5", *more)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no tuple" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["insert", "users", '[1, "again"]'], 1, "Duplicate key"),
        (["insert", "users", '["x", "y"]'], 1, "type"),
        (["insert", "users", "[1"], 2, "not JSON"),
        (["insert", "users", '{"nam": 1}'], 2, "the fields are id, name, age"),
        (
            ["insert", "bare", '{"id": 1}'],
            2,
            "ROW (argument): an object cannot",
        ),
        (["insert", "users", "[99999999999999999999]"], 1, "cannot be stored"),
        (["get", "users", "ada"], 2, '"text"'),
        (["get", "users", "1", "--index", "age"], 2, "not unique"),
        (["get", "users", "[1, 2]"], 2, "1 parts"),
        (["get", "users", "1", "--index", "nix"], 1, "No index 'nix'"),
        (["select", "nix"], 1, "Space 'nix' does not exist. hint: `logweir space list`"),
        (["update", "users", "1", '["=", 1, 2]'], 2, "list of lists"),
        (["select", "bare", "--names"], 2, "--names (option): the fields of space 'bare' have no"),
    ],
)
def test_what_cannot_be_says_why(store: Path, words: list[str], code: int, complaint: str) -> None:
    """Wrong usage is 2, what the store refuses 1; nothing is changed."""
    run("insert", store, "users", '[1, "ada"]')
    done = run(words[0], store, *words[1:])
    assert (done.exit_code, done.stdout) == (code, "")
    assert complaint in done.stderr
    assert content(store) == [(1, "ada")]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["get", "users", "1", "--index", "nix"], "its indexes: primary, name, age"),
        (["get", "users", '"x"'], "indexes of users: primary=id:unsigned name=name:string"),
        (["insert", "users", '["x", "y"]'], "first as 1: id:unsigned name:string age:unsigned?"),
        (["update", "users", "1", '[["=", 9, 1]]'], "fields of users, of which the message counts"),
        (["insert", "users", '[1, "again"]'], "`logweir replace` stores a tuple in the place"),
        (["delete", "users", "1", "--index", "age"], "a unique index: primary=id:unsigned name="),
        (["history", "nix", "1"], "`logweir space list"),
    ],
)
def test_what_is_refused_says_what_to_do(store: Path, words: list[str], hint: str) -> None:
    """With the names and types that are there."""
    run("insert", store, "users", '[1, "ada"]')
    done = run(words[0], store, *words[1:])
    assert (done.exit_code, done.stdout) == (1, "")
    assert hint in done.stderr.partition(" hint: ")[2]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("insert", ["[2, 3]"]),
        ("replace", ["[1, 3]"]),
        ("update", ["1", '[["=", 1, 3]]']),
        ("delete", ["1"]),
    ],
)
def test_a_tuple_that_cannot_be_printed_is_not_changed(
    store: Path, command: str, words: list[str]
) -> None:
    """Exit code 2 is of what was not done."""
    run("insert", store, "bare", "[1, 2]")
    assert run(command, store, "bare", *words, "--names").exit_code == 2
    assert content(store, "bare") == [(1, 2)]


def test_a_folder_in_use_names_the_way_round(store: Path) -> None:
    """Exit code 4, and the hint is the address of the server."""
    with logweir.open(store):
        done = subprocess.run([PROGRAM, "get", store, "users", "1"], capture_output=True, text=True)
    assert done.returncode == 4
    assert "in use by process" in done.stderr
    assert "tarantool://" in done.stderr


def test_a_folder_that_is_no_store_stays_as_it_is(tmp_path: Path) -> None:
    """A statement makes no store."""
    assert run("insert", tmp_path, "users", "[1]").exit_code == 1
    assert run("insert", tmp_path / "nix", "users", "[1]").exit_code == 2
    assert list(tmp_path.iterdir()) == []


VALUES = (
    1,
    b"\xde\xad",
    Decimal("1.50"),
    UUID(int=7),
    Ext(4, b"\0" * 8),  # a datetime of newer Tarantools
    "\udcff",
    [2.5, {"$bin": {1: 2}}, 2**64 - 1],
    None,
)


@pytest.mark.parametrize("names", [[], ["--names"]])
def test_what_is_exported_is_imported_again(store: Path, tmp_path: Path, names: list[str]) -> None:
    """Every kind of value, in both forms; done again with --replace nothing changes."""
    space: dict[str, Any] = {"format": [("id", "unsigned"), "blob"]}
    with logweir.open(tmp_path / "other") as log:
        log.create_space("values", **space)
    with logweir.open(store) as log:
        log.create_space("values", **space)
        log.append("values", [VALUES, (2, None), (3, "x", 1.0)])
    lines = run("export", store, "values", *names)
    assert (lines.exit_code, len(lines.stdout.splitlines())) == (0, 3)
    for more in ([], ["--replace"], ["--replace", "--batch", "1"]):
        done = run("import", tmp_path / "other", "values", *more, stdin=lines.stdout)
        assert (done.exit_code, done.stdout) == (0, "3 rows\n"), done.stderr
        assert content(tmp_path / "other", "values") == content(store, "values")
    again = run("import", tmp_path / "other", "values", stdin=lines.stdout)
    assert again.exit_code == 1


LINES = [f'[{n}, "u{n}"]' for n in range(10)]


@pytest.mark.parametrize("batch", [1, 3, 1000])
@pytest.mark.parametrize("bad", ["[7", '["x"]', '[3, "taken"]', '{"nam": 1}'])
def test_import_stops_at_a_bad_line(store: Path, batch: int, bad: str) -> None:
    """All rows before it are in, none behind it, and the line is named; blank lines count."""
    text = "\n".join(["", *LINES[:7], bad, *LINES[7:]])
    done = run("import", store, "users", "--batch", batch, stdin=text)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "line 9 of stdin: " in done.stderr
    assert "(7 rows are in)" in done.stderr
    assert ("hint: each line is as " in done.stderr) is (bad == "[7")
    assert [row[0] for row in content(store)] == list(range(7))


def test_import_names_the_line_of_an_object_that_has_no_place(store: Path) -> None:
    """As of every line that cannot be taken."""
    done = run("import", store, "bare", stdin='[1]\n{"id": 2}\n')
    assert (done.exit_code, done.stdout) == (1, "")
    assert "line 2 of stdin: an object cannot be stored: " in done.stderr
    assert content(store, "bare") == [(1,)]


def test_import_of_a_file_names_it(store: Path, tmp_path: Path) -> None:
    """A file may be given in place of stdin; `--json` tells how many rows."""
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(LINES))
    assert rows(run("import", store, "users", file, "--json")) == [{"rows": 10}]
    assert f"line 1 of {file}" in run("import", store, "users", file).stderr
    assert run("import", store, "users", tmp_path / "nix").exit_code == 2


def test_import_takes_batches_as_they_come(store: Path) -> None:
    """Rows are in the log while more of them are still to come: nothing waits for the end."""
    command = [PROGRAM, "import", store, "users", "--batch", "100"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number in range(250):
            process.stdin.write(b'[%d, "u%d"]\n' % (number, number))
        process.stdin.flush()
        until(lambda: logged(store) >= 200)
        assert process.poll() is None
        assert logged(store) == 200
        process.stdin.close()
        assert process.wait(30) == 0
    assert len(content(store)) == 250


def logged(store: Path) -> int:
    """How many rows of users are in the folder's log."""
    users = [row for row in logweir.read(store) if row.decoded().get("space_id") == 512]
    return len(users)


def test_a_space_is_made_listed_and_dropped(store: Path) -> None:
    """With fields and indexes by name; what is listed is what was asked for."""
    words = ["--field", "id:unsigned", "--field", "at:string", "--field", "note:string?"]
    indexes = ["--primary", "at,id", "--unique", "id=id", "--index", "note=note"]
    assert run("space", "create", store, "visits", *words, *indexes).exit_code == 0
    assert rows(run("insert", store, "visits", '{"id": 1, "at": "noon"}')) == [[1, "noon"]]
    (listed,) = rows(run("space", "list", store, "--json"))
    (visits,) = [one for one in listed if one["name"] == "visits"]
    assert rows(run("space", "list", store, "visits", "--json")) == [[visits]]
    assert run("space", "list", store, "nix").exit_code == 1
    assert visits["tuples"] == 1
    assert [one["name"] for one in visits["fields"]] == ["id", "at", "note"]
    assert [(one["name"], one["unique"], one["fields"]) for one in visits["indexes"]] == [
        ("primary", True, ["at", "id"]),
        ("id", True, ["id"]),
        ("note", False, ["note"]),
    ]
    shown = run("space", "list", store).stdout
    assert "id:unsigned at:string note:string?" in shown
    assert "primary=at,id id=id note=note" in shown
    assert run("space", "create", store, "visits").exit_code == 1
    assert run("space", "drop", store, "visits").exit_code == 0
    assert run("space", "drop", store, "visits").exit_code == 1


@pytest.mark.parametrize(
    "words",
    [["--field", "id"], ["--field", ":string"], ["--index", "name"], ["--unique", "=id"]],
)
def test_a_space_that_cannot_be_is_wrong_usage(store: Path, words: list[str]) -> None:
    """A field without a type, an index without a name or fields."""
    assert run("space", "create", store, "x", *words).exit_code == 2
    assert run("space", "create", store).exit_code == 2
    wrong = run("space", "create", store, "x", "--field", "id:unsignd")
    assert (wrong.exit_code, "types: any, array" in wrong.stderr) == (2, True)
