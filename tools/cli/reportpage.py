"""The page that `logweir report` writes: HTML with its styles and charts, made of the numbers that
`--json` prints. It loads nothing and runs nothing, and its policy forbids both to a browser.

Whatever comes from files goes through `_text`: markup is escaped, and what a browser or a reader
would obey (control characters, marks of the direction of writing) is shown as escapes.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from logweir.replication.web.pages import page_file
from logweir.tools.cli.holdings import ENDS
from logweir.tools.cli.output import human_bytes, visible
from logweir.wal.damage import FileEnd
from logweir.wal.render import words
from logweir.wal.vclock import vclock_of

Told = Mapping[str, Any]

_SHOWN: Final = 500
"""Rows of a table; `--json` has all."""
_TEXT: Final = 300
"""Letters of one text."""
_TIMES: Final = ("first_time", "last_time")
_BAR_WIDTH: Final = 4
_HEIGHT: Final = 100

_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
"""

_STYLE: Final = """figure { margin: .8rem 0; }
figcaption, .ends { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 1rem;
  font-size: .85rem; color: var(--soft); }
svg { display: block; width: 100%; height: 7rem; border-bottom: 1px solid var(--line);
  fill: var(--bar); }
svg.second { fill: var(--second); }
svg rect:hover { opacity: .6; }
.end { min-width: min(16rem, 70vw); }
.share { width: min(12rem, 24vw); } .share svg { height: 1rem; border: 0; }
td.number { min-width: 0; }
@media (max-width: 48rem) {
  table, tbody, tr, td { display: block; width: 100%; max-width: none; }
  thead { display: none; }
  tr { padding: .35rem 0; border-bottom: 1px solid var(--line); }
  td, .number { display: flex; justify-content: space-between; gap: 1rem; padding: .1rem .5rem;
    border: 0; text-align: right; white-space: normal; overflow-wrap: anywhere; }
  td::before { content: attr(data-name); flex: none; color: var(--soft); }
  .whole { white-space: normal; } .end { min-width: 0; } .share { width: 50vw; }
}
article { border-left: 3px solid var(--bad); padding: .1rem .8rem; margin: .6rem 0;
  overflow-wrap: anywhere; }
"""


def page(told: Told) -> str:
    """The page of what `logweir report --json` prints."""
    title = f"logweir: {_text(Path(told['path']).name or told['path'])}"
    parts = [
        _HEAD,
        f"<style>{page_file('base.css')}{_STYLE}</style>",
        f"<title>{title}</title></head><body><main>",
        f"<h1>{_text(told['path'])}</h1>",
        _what(told),
        _damage(told["damage"], told["ok"]),
        _files(told.get("files", (told,))),
        _times(told["intervals"]),
        _changes(told),
        _keys(told["keys"]),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _text(value: object) -> str:
    """A value as text of a page, also inside of an attribute."""
    text = visible(str(value))
    return html.escape(text if len(text) <= _TEXT else text[: _TEXT - 1] + "…")


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[str] = ()
) -> str:
    """A table of cells that are HTML. `numbers`: columns that are aligned right."""
    kinds = [' class="number"' if name in set(numbers) else "" for name in columns]
    head = "".join(
        f"<th{kind}>{html.escape(name)}</th>" for name, kind in zip(columns, kinds, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(
            f'<td{kind} data-name="{html.escape(name)}">{cell}</td>'
            for cell, kind, name in zip(row, kinds, columns, strict=True)
        )
        + "</tr>"
        for row in rows[:_SHOWN]
    )
    more = len(rows) - _SHOWN
    rest = f'<p class="soft">{more:,} more: --json tells them all</p>' if more > 0 else ""
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f"</div>{rest}"
    )


def _what(told: Told) -> str:
    is_folder = "files" in told
    clock = vclock_of(told["vclock"] if is_folder else told["end_vclock"])
    state = '<span class="good">everything is whole</span>'
    if not told["ok"]:
        state = '<span class="bad">damaged</span>'
    pairs: list[tuple[str, str | None]] = [
        ("verify", state + (f": {_text(told['verdict'])}" if told["verdict"] else "")),
        ("instance", told["instance"] and _text(told["instance"])),
        ("replica set", told["replicaset"] and _text(told["replicaset"])),
        ("vclock", f"{_text(clock)}, signature {clock.signature:,}"),
    ]
    if not is_folder:
        pairs.append(("kind", f"{_text(told['kind'])} {_text(told['version'])}"))
        pairs.append(("written by", told["program"] and _text(told["program"])))
    pairs += [("note", _text(one)) for one in told["warnings"]]
    cells = "\n".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in pairs if value)
    return f"<dl>{cells}</dl>"


def _damage(damage: Sequence[Told], ok: bool) -> str:
    if not damage:
        return ""
    parts = ["<h2>Unfinished writes</h2>" if ok else "<h2>Damage</h2>"]
    for one in damage[:_SHOWN]:
        lost = one["rows_lost"]
        parts.append(
            f'<article><p><span class="bad">{_text(one["kind"])}</span> in '
            f"{_text(Path(one['file']).name)} at byte {one['offset']:,}"
            + ("" if lost is None else f", {words(lost, 'row')} lost")
            + f"</p><p>{_text(one['message'])}</p>"
            + (f"<p>What to do: {_text(one['hint'])}</p>" if one["hint"] else "")
            + "</article>"
        )
    if len(damage) > _SHOWN:
        parts.append(f'<p class="soft">{len(damage) - _SHOWN:,} more places: --json tells all</p>')
    return "\n".join(parts)


def _files(files: Sequence[Told]) -> str:
    rows = [
        (
            f'<span class="code whole">{_text(Path(one["path"]).name)}</span>',
            '<div class="end">'
            + ('<span class="bad">damaged inside</span>, ' if _is_damaged(one) else "")
            + f"{ENDS[FileEnd(one['end'])]}</div>",
            human_bytes(one["size_bytes"]),
            human_bytes(one["raw_bytes"]),
            f"{one['rows']:,}",
            f"{one['transactions']:,}" if one["kind"] == "XLOG" else "",
            *(_text(one[of] or "").replace("T", "T<wbr>") for of in _TIMES),
        )
        for one in files
    ]
    names = ("file", "end", "size", "unpacked", "rows", "transactions", "from", "until")
    return "<h2>Files</h2>" + _table(names, rows, ("size", "unpacked", "rows", "transactions"))


def _is_damaged(file: Told) -> bool:
    ends = {end.value for end in FileEnd if end is not FileEnd.CORRUPT}
    return any(one["kind"] not in ends for one in file["damage"])


def _bars(values: Sequence[int], titles: Sequence[str], kind: str = "") -> str:
    """A chart: a bar for each value, with its title."""
    highest = max(values, default=0) or 1
    rects = "".join(
        f'<rect x="{number * _BAR_WIDTH}" y="{_HEIGHT - high:.2f}" width="{_BAR_WIDTH - 0.5}" '
        f'height="{high:.2f}"><title>{_text(title)}</title></rect>'
        for number, (value, title) in enumerate(zip(values, titles, strict=True))
        if value
        for high in [max(1.0, value * _HEIGHT / highest)]
    )
    box = f"0 0 {len(values) * _BAR_WIDTH} {_HEIGHT}"
    of_kind = f' class="{kind}"' if kind else ""
    return f'<svg{of_kind} viewBox="{box}" preserveAspectRatio="none" role="img">{rects}</svg>'


def _times(told: Told) -> str:
    intervals = told["of"]
    if not intervals:
        return ""
    parts = ["<h2>Over time</h2>"]
    length = _duration(told["seconds"])
    for name, kind, shown in (("rows", "", _grouped), ("bytes", "second", human_bytes)):
        values = [one[name] for one in intervals]
        titles = [f"{one['from']}: {shown(one[name])} {name}" for one in intervals]
        parts.append(
            f"<figure><figcaption><span>{name} each {length}</span>"
            f"<span>at most {shown(max(values))}</span></figcaption>{_bars(values, titles, kind)}"
            f'<div class="ends"><span>{_text(intervals[0]["from"])}</span>'
            f"<span>{_text(intervals[-1]['from'])}</span></div></figure>"
        )
    if told["untimed_rows"]:
        parts.append(f'<p class="soft">{words(told["untimed_rows"], "row")} without a time</p>')
    return "\n".join(parts)


def _grouped(count: int) -> str:
    return f"{count:,}"


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1000:g} ms"


def _share(value: int, highest: int) -> str:
    """A bar that lies, for a cell of a table."""
    width = 100 * value / (highest or 1)
    return (
        '<div class="share"><svg viewBox="0 0 100 10" preserveAspectRatio="none" role="img">'
        f'<rect x="0" y="1" height="8" width="{width:.2f}"></rect></svg></div>'
    )


def _changes(told: Told) -> str:
    changes = told["changes"]
    if not changes:
        return ""
    most = max(one["bytes"] for one in changes)
    rows = [
        (
            _space(one),
            _text(one["type"]),
            f"{one['rows']:,}",
            human_bytes(one["bytes"]),
            _share(one["bytes"], most),
        )
        for one in changes
    ]
    names = ("space", "type", "rows", "bytes", "share of the bytes")
    parts = ["<h2>By space and type</h2>", _table(names, rows, ("rows", "bytes"))]
    others = told["other_changes"]
    if others["rows"]:
        parts.append(f'<p class="soft">{words(others["rows"], "row")} of further spaces</p>')
    parts += ["<h2>Sizes of rows</h2>", _ranges(told["row_sizes"], "bytes", "rows")]
    parts += ["<h2>Transactions</h2>"]
    count = sum(one["transactions"] for one in told["transaction_sizes"])
    largest = words(told["largest_transaction"], "row")
    parts.append(f"<p>{words(count, 'transaction')}, the largest of {largest}</p>")
    parts.append(_ranges(told["transaction_sizes"], "rows", "transactions"))
    return "\n".join(parts)


def _space(one: Told) -> str:
    if one["space"] is None:
        return '<span class="soft">none</span>'
    name = one["name"]
    return f"{one['space']}" if name is None else f"{_text(name)} ({one['space']})"


def _ranges(told: Sequence[Told], unit: str, what: str) -> str:
    most = max(one[what] for one in told)
    rows = [
        (
            f"{one['from']:,}" if one["from"] == one["to"] else f"{one['from']:,} – {one['to']:,}",
            f"{one[what]:,}",
            _share(one[what], most),
        )
        for one in told
    ]
    return _table((unit, what, ""), rows, (unit, what))


def _keys(told: Told) -> str:
    parts = ["<h2>Keys that change most often</h2>"]
    if told["most"]:
        highest = told["most"][0]["changes"]
        rows = [
            (
                _space(one),
                f'<span class="code">{_text(json.dumps(one["key"], ensure_ascii=False))}</span>',
                f"{one['changes']:,}",
                _share(one["changes"], highest),
            )
            for one in told["most"]
        ]
        parts.append(_table(("space", "primary key", "changes", ""), rows, ("changes",)))
    low = told["too_low"]
    exact = (
        f"Estimated in bounded memory: a number is too low by {low:,} at most, and no key that is "
        f"not shown has more than the last one and {low:,} together."
        if low
        else "Counted exactly."
    )
    if told["rows"]:
        behind = f"behind the snapshot {vclock_of(told['behind'])}"
        parts.append(
            f'<p class="soft">Of {words(told["rows"], "change")} {_text(behind)}. {exact}</p>'
        )
    if told["left_out"]:
        left = words(told["left_out"], "change")
        parts.append(f'<p class="soft">Left out: {left} whose key is long or not in its tuple.</p>')
    if told["why_not"]:
        parts.append(f'<p class="soft">Not counted: {_text(told["why_not"])}</p>')
    if len(parts) == 1:
        parts.append('<p class="soft">There is no change to count.</p>')
    return "\n".join(parts)
