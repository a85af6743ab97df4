"""`logweir config`: what configuration a command that runs on would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from logweir.tools.cli.configfile import declared, evaluate, key_of, masked, origin_of
from logweir.tools.cli.main import load_command
from logweir.tools.cli.output import Output


def command(
    out: Output,
    action: Annotated[Literal["show"], typer.Argument(metavar="ACTION", help="What to do: show.")],
    of: Annotated[
        Literal["serve", "follow", "capture", "archive"],
        typer.Argument(metavar="[COMMAND]", help="serve, follow, capture or archive."),
    ] = "serve",
    origin: Annotated[
        bool,
        typer.Option(
            "--origin", allow_from_autoenv=False, help="Say of each value where it came from."
        ),
    ] = False,
    file: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The file that COMMAND is given."),
    ] = None,
) -> int:
    """Show what a command that runs on would have: each option, from file, environment or default.

    It is TOML, which can be written into a file; passwords in addresses are left out. Exit code 2
    if file or environment hold what COMMAND would not take.
    """
    del action  # there is one
    shown_command = load_command(of)
    context = evaluate(shown_command, file)
    shown = {}
    for name in declared(shown_command):
        value, where = _plain(context.params[name]), origin_of(context, name)
        shown[key_of(name)] = {"value": value, **({"origin": where} if origin else {})}
        text = f"{key_of(name)} = {_toml(value)}"
        if value is None:
            text = f"# {key_of(name)} is not set"
        elif origin:
            text += f"  # {where}"
        if not out.as_json:
            out.line(text)
    if out.as_json:
        out.json(shown)
    return 0


def _plain(value: Any) -> Any:
    """A value as TOML and JSON have it, without passwords."""
    return masked(str(value) if isinstance(value, Path) else value)


def _toml(value: Any) -> str:
    """One value in TOML: texts, lists of texts, numbers and switches look there as in JSON, but for
    DEL, which may not stand in a text."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
