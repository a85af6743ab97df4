"""The page of a server in a real browser: light and dark, upstream and follower, names that would
like to be markup, a server that goes away and comes back."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.browser import Browser
from support.ports import free_port
from typer.testing import CliRunner

import logweir
from interop.serving import Serving
from interop.test_iproto_cli import CODE
from logweir.replication.iproto.follow.join import join
from logweir.replication.protocols import parse_listen_url, parse_url
from logweir.replication.service import users
from logweir.replication.tank.client.sync import Client as TankClient
from logweir.replication.urls import Url
from logweir.store.schema.access import Privilege
from logweir.tools.cli import main

ROOT = Path(__file__).resolve().parents[2]
WEB = Url("web", "127.0.0.1", 0)
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e\x07"
ROW = """[...document.querySelectorAll('[data-table="%s"] tbody tr')].map(
    (row) => [...row.cells].map((cell) => cell.textContent))"""

TALLEST = "Math.max(...[...document.querySelectorAll('tr')].map((row) => row.offsetHeight))"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests here."""
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def rows(page: Browser, table: str) -> list[list[str]]:
    """What a table shows."""
    found: list[list[str]] = page.ask(ROW % table)
    return found


def faults(page: Browser) -> list[str]:
    """What a page complains of, but that a server went away, which tests do."""
    return [one for one in page.complaints if "net::ERR_" not in one]


def fits(page: Browser) -> bool:
    """Whether nothing is wider than the page."""
    found: bool = page.ask("document.documentElement.scrollWidth <= innerWidth")
    return found


@contextmanager
def serving(*words: object) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """`logweir serve`, and what it says when it is ready. It is killed at the end."""
    command = [sys.executable, "-c", CODE, "serve", *map(str, words), "--json"]
    with subprocess.Popen(
        [*command, "--listen", "tarantool://127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


CONTRAST = """(() => {
    const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (color) => {
        const [r, g, b] = color.map((one) => one / 255)
            .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const found = numbers(getComputedStyle(at).backgroundColor);
            if (found.length < 4 || found[3] > 0) return found.slice(0, 3);
        }
        return numbers(getComputedStyle(document.documentElement).getPropertyValue('--back'));
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
        if (node.closest('noscript, .unseen')) continue;
        const style = getComputedStyle(node);
        const color = numbers(node.closest('#map') ? style.fill : style.color).slice(0, 3);
        const [one, two] = [light(color), light(behind(node))];
        const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
        if (ratio < 4.5) found.push([walker.currentNode.data, ratio, style.color]);
    }
    return found;
})()"""


def test_empty_server(browser: Browser, tmp_path: Path) -> None:
    """With nothing to show each part says so; it fits on a phone, and can be read in light and in
    dark, and no part of it complains."""
    with Serving(tmp_path / "shop", guest="all", web=WEB) as server:
        for dark in (False, True):
            for width in (1200, 360):
                browser.look(width, 800, dark=dark, touch=width < 500)
                browser.open(server.server.page_url)
                browser.until("document.querySelectorAll('#facts dd').length > 10")
                text = browser.ask("document.body.innerText")
                for words in (
                    *("No upstream is followed", "Nobody follows", "No log is kept longer"),
                    *("The store has no space yet", "No warning and no error"),
                    *("shop", "running", str(server.log.instance)),
                ):
                    assert words in text
                assert browser.ask("document.getElementById('map').textContent").startswith(
                    ("no upstream", "shop")
                )
                assert fits(browser)
                assert browser.ask(CONTRAST) == []
                back = browser.ask("getComputedStyle(document.body).backgroundColor")
                assert (back == "rgb(255, 255, 255)") is not dark
                assert browser.ask("document.title") == "shop · logweir"
    assert faults(browser) == []


def test_topology_rates_and_names(browser: Browser, tmp_path: Path) -> None:
    """An upstream and a follower come while the page is open, rows go through, and a name that is
    markup is a name."""
    port = free_port()
    first = [parse_listen_url(f"tarantool://127.0.0.1:{port}")]
    upstream = parse_url(f"tarantool://127.0.0.1:{port}")
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    with Serving(one, guest="all", listen=first) as source:
        source.log.create_space(EVIL.replace("\x07", "").replace("\u202e", ""))
        asyncio.run(join(upstream, two))
        with Serving(two, guest="all", web=WEB, follow=[upstream]) as server:
            browser.look(1200, 900)
            browser.open(server.server.page_url)
            words = "document.getElementById('map-text').textContent"
            browser.until(f"{words}.includes('127.0.0.1:{port}, tarantool, following')")
            assert browser.ask(words).endswith("Followers: none.")
            asyncio.run(join(parse_url(str(server.url)), three))
            with Serving(three, follow=[parse_url(str(server.url))]) as follower:
                instance = str(follower.log.instance)
                browser.until(f"{words}.includes('{instance}') && {words}.includes('up to date')")
                drawn = "document.querySelectorAll('#map g').length"
                assert browser.ask(drawn) == 3
                source.log.create_space("t")
                for number in range(50):
                    source.log.insert("t", (number, EVIL))
                changes = "document.querySelector('figure .legend li strong').textContent"
                browser.until(f"parseFloat({changes}) > 0")
                follower.wait(lambda: follower.log.vclock == server.log.vclock)
                browser.until(f"{ROW % 'spaces'}.some((row) => row[0] === 't' && row[3] === '50')")
                assert rows(browser, "followers")[0][:2] == [instance, "tarantool"]
                assert rows(browser, "upstreams")[0][:2] == [str(upstream), "following"]
                assert int(rows(browser, "upstreams")[0][4]) >= 50
                assert rows(browser, "keepers")[0][0] == f"follower tarantool:{instance}"
                names = [row[0] for row in rows(browser, "spaces")]
                assert EVIL.replace("\x07", "").replace("\u202e", "") in names
                assert browser.ask("document.images.length + document.scripts.length") == 1
                assert fits(browser)
                for width, dark in ((1200, True), (700, False), (360, True)):
                    browser.look(width, 900, dark=dark)
                    browser.until(
                        "Math.abs(document.getElementById('map').viewBox.baseVal.width"
                        " - document.getElementById('map').clientWidth) < 2"
                    )
                    assert fits(browser)
                    assert browser.ask(CONTRAST) == []
            browser.until(f"!{words}.includes('{instance}')")
        assert faults(browser) == []


def test_server_that_goes_away_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    """A banner tells it; the page goes on by itself, with what the server says then."""
    words = ("--web", f"127.0.0.1:{free_port()}", "--allow-guest", "all")
    browser.look()
    with serving(tmp_path, *words) as (process, ready):
        browser.open(ready["web"])
        browser.until("document.querySelectorAll('#facts dd').length > 10")
        assert browser.ask("document.getElementById('banner').hidden")
        process.kill()
        place = "document.getElementById('banner')"
        hidden = f"{place}.hidden"
        banner = browser.until(f"!{hidden} && {place}.textContent")
        assert banner.startswith("The server does not answer. What is shown is of ")
        assert browser.ask(CONTRAST.replace("document.body, ", f"{place}, ")) == []
    with logweir.open(tmp_path) as log:
        log.create_space("since")
    with serving(tmp_path, *words):
        browser.until(hidden)
        browser.until(f"{ROW % 'spaces'}.some((row) => row[0] === 'since')")


def test_errors_are_told(browser: Browser, tmp_path: Path) -> None:
    """With where, why and what to do; control characters and marks of direction are shown."""
    gone = parse_url(f"tank://127.0.0.1:{free_port()}/%3Cb%3Etopic%3C%2Fb%3E%E2%80%AE")
    with Serving(tmp_path, guest="all", web=WEB, follow=[gone]) as server:
        browser.look(1200, 900)
        browser.open(server.server.page_url)
        browser.until(f"{ROW % 'errors'}.some((row) => row[1] === 'source.waiting')")
        (error,) = [row for row in rows(browser, "errors") if row[1] == "source.waiting"]
        assert error[2] == str(gone)
        assert "look at its address" in error[4]
        browser.until(f"{ROW % 'upstreams'}[0][1] === 'waiting'")
        assert (
            browser.ask("document.querySelector('#map path').getAttribute('class')") == "bad away"
        )
        shown = browser.ask("text('a\\u202eb\\u0007')")
        assert shown == "a\\u202eb\\u0007"
        assert faults(browser) == []


def test_many_upstreams_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    """Some rows of each table are shown, the worst first, and all when they are asked for."""
    first = [parse_listen_url("tank://127.0.0.1:0")]
    with Serving(tmp_path / "tank", listen=first) as source:
        topics = [f"topic{number:02}" for number in range(29)]
        with TankClient(str(source.url)) as client:
            for name in topics:
                client.create_topic(name)
        follow = [parse_url(f"{source.url}/{name}") for name in topics]
        gone = parse_url(f"tank://127.0.0.1:{free_port()}/last")
        with Serving(tmp_path / "hub", web=WEB, guest="all", follow=[*follow, gone]) as server:
            browser.look(390, 844, touch=True)
            browser.open(server.server.page_url)
            following = "filter((row) => row[1] === 'following').length"
            browser.until(f"{ROW % 'upstreams'}.{following} === 29")
            browser.until(f"{ROW % 'upstreams'}[0][1] === 'waiting'")
            table = "document.querySelector('[data-table=upstreams] tbody')"
            visible = f"[...{table}.rows].filter((row) => row.checkVisibility()).length"
            button = "document.querySelector('[data-table=upstreams] button')"
            for dark in (False, True):
                browser.look(390, 844, dark=dark, touch=True)
                assert browser.ask(visible) == 6
                assert browser.ask("document.documentElement.scrollHeight") < 8_000
                assert browser.ask(f"{button}.textContent") == "Show all 30"
                assert browser.ask(CONTRAST) == []
                assert fits(browser)
                browser.ask(f"{button}.click()")
                assert browser.ask(visible) == 30
                assert browser.ask(f"{button}.textContent") == "Show fewer"
                browser.ask(f"{button}.click()")
            browser.look(1200, 900)
            assert browser.ask(visible) == 30
            assert not browser.ask(f"{button}.checkVisibility()")
        assert faults(browser) == []


def test_charts_are_used_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    """Arrow keys choose a moment, whose time is told; Escape leaves it."""
    with Serving(tmp_path, guest="all", web=WEB) as server:
        browser.look()
        browser.open(server.server.page_url)
        browser.until("times.length > 2")
        browser.ask("document.querySelector('figure').focus()")
        moment = "document.querySelector('figcaption span').textContent"
        browser.press("ArrowLeft")
        told = browser.until(moment)
        assert told.startswith("at ")
        browser.press("Escape")
        browser.until(f"{moment} === ''")
        named = "document.querySelector('svg[role=img]').getAttribute('aria-labelledby')"
        assert browser.ask(named) == "topology map-text"


def test_user_logs_in(tmp_path: Path) -> None:
    """The browser is asked for user and password, and its stream of events has them, too."""
    with logweir.open(tmp_path / "store") as log:
        users.add_user(log, "ann", password="geheim ü")
        users.grant(log, "ann", Privilege.EXECUTE, users.Target())
    with (
        Serving(tmp_path / "store", web=WEB) as server,
        Browser(tmp_path / "browser", user="ann", password="geheim ü") as browser,
    ):
        browser.open(server.server.page_url)
        browser.until("document.querySelectorAll('#facts dd').length > 10")
        assert "nothing" in browser.ask("document.getElementById('facts').innerText")
        assert server.server.shared.logins.failed_in_all == 0


def test_report_of_a_folder(browser: Browser, tmp_path: Path) -> None:
    """The page of `logweir report`, whole and damaged, can be read in light and dark and on a
    phone, and asks nobody for anything."""
    running = tmp_path / "running"
    with logweir.open(running) as log:
        log.create_space("s")
    (file,) = running.glob("*.xlog")
    file.write_bytes(file.read_bytes()[:-4])  # without its end: as if it were written to
    samples = ROOT / "tests" / "data" / "tarantool"
    for source in (samples / "02-spaces", samples / "05-damaged" / "v-gap", running):
        name = str(source)
        file = tmp_path / f"{source.name}.html"
        result = CliRunner().invoke(main.app, ["report", str(source), "-o", str(file)])
        assert result.exit_code == (3 if "damaged" in name else 0), result.output
        for width, dark in ((1200, False), (1200, True), (360, True)):
            browser.look(width, 900, dark=dark)
            browser.open(file.as_uri())
            browser.until("document.readyState === 'complete' && document.querySelector('h2')")
            assert browser.ask(CONTRAST) == []
            assert fits(browser)
            # On a phone a row is a list of its own.
            assert browser.ask(TALLEST) < (150 if width > 360 else 300)
            back = browser.ask("getComputedStyle(document.body).backgroundColor")
            assert (back == "rgb(255, 255, 255)") is not dark
            assert browser.ask("performance.getEntriesByType('resource').length") == 0
    assert faults(browser) == []


def work(server: Serving, batches: int) -> None:
    """Changes, more and fewer by turns."""
    for batch in range(batches):
        with server.log.transaction() as transaction:
            for number in range(20 + 15 * (batch % 7)):
                transaction.replace("orders", (number, f"customer {batch}", batch))


def test_pictures(browser: Browser, tmp_path: Path) -> None:
    """A busy server: an upstream, one that is away, followers, old logs that are kept. With
    LOGWEIR_PICTURES=FOLDER what is seen is put there, as the documentation shows it."""
    ports = [free_port(), free_port()]
    first = [parse_listen_url(f"tarantool://127.0.0.1:{ports[0]}")]
    upstream = parse_url(f"tarantool://127.0.0.1:{ports[0]}")
    away = parse_url(f"tank://127.0.0.1:{ports[1]}/events")
    shop, one, two = (tmp_path / name for name in ("shop", "one", "two"))
    with Serving(tmp_path / "main", guest="all", listen=first) as source:
        for name in ("orders", "customers", "stock"):
            source.log.create_space(name)
        asyncio.run(join(upstream, shop))
        listen = [parse_listen_url(f"{scheme}://:0") for scheme in ("tarantool", "tank")]
        with Serving(shop, guest="all", web=WEB, listen=listen, follow=[upstream, away]) as server:
            here = parse_url(str(server.url))
            browser.look(1200, 1000)
            browser.open(server.server.page_url)
            for folder in (one, two):
                asyncio.run(join(here, folder))
            with Serving(one, follow=[here]), Serving(two, follow=[here]):
                end = browser.until("times.at(-1)") + 12
                while browser.ask("times.at(-1)") < end:
                    work(source, 40)
                browser.until(f"{ROW % 'followers'}.length === 2")
                browser.until(
                    f"{ROW % 'spaces'}.some((row) => row[0] === 'orders' && row[3] !== '0')"
                )
                assert len(rows(browser, "upstreams")) == 2
                assert fits(browser)
                pictures(browser, Path(os.environ.get("LOGWEIR_PICTURES") or tmp_path))
    assert faults(browser) == []


def pictures(page: Browser, folder: Path) -> None:
    """The two of the documentation, each small enough to be kept with the sources."""
    for name, width, height, dark in (
        ("web-light", 1200, 1000, False),
        ("web-dark-narrow", 390, 844, True),
    ):
        page.look(width, height, dark=dark)
        page.until(
            "Math.abs(document.getElementById('map').viewBox.baseVal.width - "
            "document.getElementById('map').clientWidth) < 2"
        )
        file = folder / f"{name}.png"
        page.picture(file)
        with Image.open(file) as picture:
            picture.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)
        assert 5_000 < file.stat().st_size < 120_000
