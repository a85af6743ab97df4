"""The program `logweir`: one module per command, no logic beyond asking and showing.

Each command module has one function `command(out, …)`: `out` is the `Output` to write to, the rest
are the command's arguments and options (typer's annotations). It returns an exit code.
"""
