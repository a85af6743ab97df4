"""What `tools/release` writes: the changelog out of fragments, and the version where it stands."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from logweir.wal.writer import VERSION

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def git(tree: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, *words], cwd=tree, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with what the script touches, all of it committed."""
    for name in ("tools/release", "pyproject.toml", "wal/writer.py", "changelog.d/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "-q")
    commit(tmp_path, {"b.fixed": "No row\nis lost.\n", "a.added": "`x` shows it.\n"})
    return tmp_path


def commit(tree: Path, fragments: dict[str, str]) -> None:
    for name, text in fragments.items():
        (tree / f"changelog.d/{name}.md").write_text(text)
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "x")


def release(tree: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run([tree / "tools/release", *words], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_fragments_become_the_newest_section(tree: Path) -> None:
    """By kind, each an item; the sections of earlier versions stay below."""
    assert release(tree, "7.8.9")[0] == 0
    assert sorted(one.name for one in (tree / "changelog.d").iterdir()) == ["README.md"]
    commit(tree, {"c.security": "It asks first.\n"})
    assert release(tree, "8.0.0")[0] == 0
    text = (tree / "CHANGELOG.md").read_text()
    lines = [line.partition(" (")[0] for line in text.splitlines() if line]
    assert lines == [
        *("# What changed", "## 8.0.0", "### Security", "* It asks first."),
        *("## 7.8.9", "### Added", "* `x` shows it."),
        *("### Fixed", "* No row", "  is lost."),
    ]


def test_version_is_written_where_it_stands(tree: Path) -> None:
    """In both places, which say the same here, too."""
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION
    release(tree, "7.8.9")
    assert tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"] == "7.8.9"
    assert 'VERSION: Final = "7.8.9"\n' in (tree / "wal/writer.py").read_text()


@pytest.mark.parametrize("words", [(), ("7.8",), ("v7.8.9",), ("7.8.9; rm x",)])
def test_what_is_no_version_is_refused(words: tuple[str, ...], tree: Path) -> None:
    """And nothing is written."""
    code, said = release(tree, *words)
    assert code == 1
    assert "give a version" in said
    assert not (tree / "CHANGELOG.md").exists()


def test_what_is_not_committed_or_nothing_new_is_refused(tree: Path) -> None:
    """A release is what was tested: changes in the tree are none, and no fragment is no change."""
    (tree / "more").touch()
    assert "has changes" in release(tree, "7.8.9")[1]
    (tree / "more").unlink()
    release(tree, "7.8.9")
    commit(tree, {})
    assert "7.8.9 already" in release(tree, "7.8.9")[1]
    assert "no fragment" in release(tree, "7.9.0")[1]
