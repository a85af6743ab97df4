"""`logweir topic` with arguments that a broker would refuse, and folders that are in the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import logweir
from logweir.replication.topic.spaces import topics_of
from logweir.tools.cli.main import app


def run(*arguments: object) -> Result:
    """Run the program in this process."""
    return CliRunner().invoke(app, [*map(str, arguments)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a topic."""
    logweir.open(tmp_path / "store").close()
    assert run("topic", "create", tmp_path / "store", "good").exit_code == 0
    return tmp_path / "store"


def test_one_partition_is_one_partition(store: Path) -> None:
    """Partitions are counted in words, of one as of several."""
    for options, said in ((), "1 partition"), (("--partitions", "2"), "2 partitions"):
        done = run("topic", "create", store, f"t{len(options)}", *options)
        assert done.stderr == f"logweir: created t{len(options)} with {said}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("../../etc",), "cannot name one"),
        (("--", "-"), "cannot name one"),
        (("x" * 65,), "cannot name one"),
        (("x", "--set", "foo=1"), "there is no such setting"),
    ],
)
def test_a_topic_that_no_broker_would_make_is_refused(
    words: tuple[str, ...], said: str, store: Path
) -> None:
    """By the name of what is wrong, and nothing is made."""
    done = run("topic", "create", store, *words)
    assert done.exit_code == 2
    assert said in done.stderr
    with logweir.open(store) as log:
        assert list(topics_of(log)) == ["good"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("topic config STORE bad", "NAME (argument): there is no topic 'bad'"),
        ("topic config STORE bad --set log.retention.secs=9", "there is no topic 'bad'"),
        ("user grant STORE guest raed", "'raed' is neither a right nor a role"),
        ("user revoke STORE guest super,raed", "'super' is not a right"),
        ("retain release STORE", "NAME (argument): is missing"),
        ("history STORE topic 1 --limit 0", "0 is not in the range x>=1"),
    ],
)
def test_what_an_order_names_and_is_not_there_is_told(words: str, said: str, store: Path) -> None:
    """As wrong usage, with what would be right."""
    done = run(*(store if word == "STORE" else word for word in words.split()))
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_a_setting_that_nobody_knows_is_refused_and_can_be_removed(store: Path) -> None:
    """`KEY=` takes away what an earlier version or a broker left."""
    done = run("topic", "config", store, "good", "--set", "foo=1")
    assert done.exit_code == 2
    assert "log.retention.bytes" in done.stderr
    assert run("topic", "config", store, "good", "--set", "foo=").exit_code == 0
    assert run("topic", "config", store, "good", "--set", "LOG.retention.secs=9").exit_code == 0


@pytest.mark.parametrize("command", ["restore", "repair", "backup"])
def test_a_copy_is_not_made_inside_of_what_is_read(command: str, store: Path) -> None:
    """The source is left as it is."""
    before = sorted(path.name for path in store.iterdir())
    for target in (store / "copy", store / "a" / ".." / "copy", store):
        done = run(command, store, "--to", target)
        assert done.exit_code == 2, target
        assert "is inside of what is read" in done.stderr
    assert sorted(path.name for path in store.iterdir()) == before


def test_a_topic_that_is_there_is_called_one(store: Path) -> None:
    """Not by the space in which it is; that of a space is."""
    with logweir.open(store) as log:
        log.create_space("plain")
    for name, said in (("good", "Topic 'good' already"), ("plain", "Space 'plain' already")):
        done = run("topic", "create", store, name)
        assert done.exit_code == 1
        assert said in done.stderr
    with logweir.open(store) as log:
        assert list(topics_of(log)) == ["good"]
