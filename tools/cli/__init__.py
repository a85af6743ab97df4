"""The program `logweir`: one module per command, no logic beyond asking and showing.

Each command module has one function `command(out, …)`: `out` is the `Output` to write to, the rest
are the command's arguments and options (typer's annotations). It returns an exit code.
"""

from importlib.util import find_spec

if find_spec("typer") is None or find_spec("rich") is None:
    raise SystemExit("logweir: error: the command needs more: pip install 'logweir[cli]'")
