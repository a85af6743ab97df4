"""The documentation is complete, its links lead somewhere, and its examples run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support import examples
from typer.testing import CliRunner

from logweir.tools import docs
from logweir.tools.cli.main import COMMANDS, app, load_command
from logweir.tools.manpage import man_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_documentation_is_complete() -> None:
    """Every command, option, error and kind of damage is documented; every link resolves."""
    assert docs.check(ROOT) == []


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.spark] * (page.name == "pipeline.md"))
        for page in PAGES
    ],
)
def test_examples_of_the_page_run(page: Path, tmp_path: Path) -> None:
    """Programs and sessions shown on a page do what the page says."""
    assert examples.run_page(page, tmp_path) == []


def test_pages_do_not_depend_on_what_the_process_did() -> None:
    """A command that was run for one of its topics is described as before."""
    page = man_page()
    for name in COMMANDS:
        for topic in load_command(name).topics:
            assert CliRunner().invoke(app, [name, topic, "--help"]).exit_code == 0
    assert man_page() == page


def append(name: str, text: str) -> Callable[[Path], None]:
    """A change that adds text to a page."""

    def change(root: Path) -> None:
        with (root / name).open("a") as page:
            page.write(text)

    return change


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    """A change that replaces text of a page, which has to be there."""

    def change(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (append("docs/cli.md", "more\n"), "out of date"),
        (lambda root: (root / "docs/cli.md").unlink(), "out of date"),
        (replace("docs/api.md", "### `Log.insert`", "### `Log.put`"), "docs/api.md is out of date"),
        (lambda root: (root / "docs/errors.md").unlink(), "errors.md is missing"),
        (lambda root: (root / "docs/json.md").unlink(), "json.md is missing"),
        (replace("docs/json.md", "`gaps", "gaps"), "does not say what gaps prints"),
        (replace("docs/errors.md", "## `ChainGap`", "## `Chain`"), "does not explain ChainGap"),
        (append("docs/errors.md", "## `Nothing`\n"), "explains Nothing, which does not exist"),
        (replace("docs/recovery.md", "| `zero_tail` |", "| |"), "does not explain zero_tail"),
        (append("README.md", "[x](docs/nowhere.md)\n"), "docs/nowhere.md, which is not there"),
        (append("README.md", "[x](docs/cli.md#nowhere)\n"), "which has no such heading"),
        (append("docs/errors.md", "[x](#nowhere)\n"), "which has no such heading"),
        (lambda root: (root / "changelog.d/x.new.md").touch(), "is not named"),
        (lambda root: (root / "changelog.d/x.md").touch(), "is not named"),
        (lambda root: (root / "docs/new.md").touch(), "docs/new.md no place on the site"),
    ],
)
def test_each_check_of_the_documentation_can_fail(
    change: Callable[[Path], None], complaint: str, tmp_path: Path
) -> None:
    """One fault in a copy of the documentation gives one complaint that names it."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "changelog.d", tmp_path / "changelog.d")
    for name in ("README.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    change(tmp_path)
    complaints = docs.check(tmp_path)
    assert any(complaint in one for one in complaints), complaints


def test_links_out_and_links_that_resolve_are_taken(tmp_path: Path) -> None:
    """Addresses, other pages, headings and links inside of code give no complaint."""
    (tmp_path / "docs").mkdir()
    text = "# A `b` c!\n[x](https://example.org) [y](b.md#b) [z](#a-b-c)\n```\n[n](no.md)\n```\n"
    (tmp_path / "docs" / "a.md").write_text(text)
    (tmp_path / "docs" / "b.md").write_text("# B\n")
    assert not [one for one in docs.check(tmp_path) if "links to" in one]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ([], ["anything"], True),
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["a"], False),
        (["a … c"], ["a xyz c"], True),
        (["a … c"], ["a xyz"], False),
        (["a", "…", "z"], ["a", "b", "c", "z"], True),
        (["a", "…", "z"], ["a", "z"], True),
        (["a", "…"], ["b"], False),
    ],
)
def test_output_of_an_example_is_compared(
    expected: list[str], printed: list[str], same: bool
) -> None:
    """The ellipsis stands for anything, everything else for itself."""
    assert examples.matches(expected, printed) is same


def test_wrong_examples_are_found(tmp_path: Path) -> None:
    """A program that fails, a command that fails and output that differs are complaints."""
    page = tmp_path / "page.md"
    fence = "```"
    page.write_text(
        f"{fence}python\nx = 1\n{fence}\n{fence}python\nassert x == 1\n{fence}\n"
        f"{fence}console\n$ false\n$ echo a\nb\n$ echo a\na\n$ false; echo $?\n1\n{fence}\n"
        f"{fence}python\nassert False\n{fence}\n"
    )
    complaints = examples.run_page(page, tmp_path)
    assert [one.splitlines()[0] for one in complaints] == ["$ false", "$ echo a", "assert False"]


def test_a_server_of_a_page_that_does_not_start_is_told(tmp_path: Path) -> None:
    """With what it printed; the page goes no further."""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo away; false &\n$ touch further\n```\n")
    with pytest.raises(RuntimeError, match=r"echo away; false &\naway"):
        examples.run_page(page, tmp_path)
    assert not (tmp_path / "further").exists()
