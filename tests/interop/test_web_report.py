"""The page of `logweir report` in a real browser: nothing of it is cut off, wide or narrow."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browser import Browser
from typer.testing import CliRunner

import logweir
from logweir.tools.cli import main


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 420])
def test_no_column_is_cut(width: int, dark: bool, tmp_path: Path) -> None:
    """Whatever is in a table is inside of the window, with long names and keys, too."""
    store, page = tmp_path / "store", tmp_path / "report.html"
    with logweir.open(store) as log:
        log.create_space("a_space_with_a_name_that_is_rather_long", [("id", "string")])
        for number in range(20):
            log.insert("a_space_with_a_name_that_is_rather_long", [f"key-{number:02d}" * 20])
        log.snapshot()
        log.delete("a_space_with_a_name_that_is_rather_long", "key-00" * 20)
    done = CliRunner().invoke(main.app, ["report", str(store), "-o", str(page)])
    assert done.exit_code == 0, done.output
    with Browser(tmp_path / "browser") as browser:
        browser.look(width, dark=dark)
        browser.open(page.as_uri())
        browser.until("document.readyState === 'complete' && document.querySelector('td')")
        cut = browser.ask(
            "[...document.querySelectorAll('td, th, dd, figure, h1')].filter((one) => "
            "one.getBoundingClientRect().right > innerWidth + 1 || one.scrollWidth > "
            "one.clientWidth + 1).map((one) => one.tagName + ' ' + one.textContent)"
        )
        assert cut == []
        assert browser.ask("getComputedStyle(document.body).backgroundColor") == (
            "rgb(21, 24, 27)" if dark else "rgb(255, 255, 255)"
        )
        assert browser.complaints == []
