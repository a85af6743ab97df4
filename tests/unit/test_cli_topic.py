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
