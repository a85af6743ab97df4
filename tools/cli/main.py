"""The entry point: global options, the table of commands, errors and exit codes.

=====  ============================================================================
code   meaning
=====  ============================================================================
0      done, nothing to complain about
1      a problem was found, a change could not be made, or a folder holds no store
2      wrong usage: unknown option, missing file, a value that cannot be
3      data on disk is damaged
4      something could not be reached: a peer, a locked folder, a file without rights
130    stopped by Ctrl-C
141    whoever read the output stopped reading
143    ended by SIGTERM; what it had started ends with it
=====  ============================================================================

Results go to stdout, messages to stderr. An error is one line, ``logweir: error: … hint: …``; the
traceback is shown with ``--debug`` only. A command's module is imported when the command is used,
so that ``logweir --help`` stays fast. The global options may stand before or after the command.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from logweir.tools.cli.commandhelp import HelpfulCommand
from logweir.tools.cli.output import Output

COMMANDS: Final = {
    "init": "Make a fresh store.",
    "space": "List, make and drop spaces.",
    "get": "Print one tuple.",
    "select": "Print tuples in the order of an index.",
    "history": "Print all changes of one key.",
    "insert": "Insert a tuple.",
    "replace": "Store a tuple, in the place of one with its key.",
    "update": "Change fields of a tuple.",
    "upsert": "Insert a tuple, or change the one that is there.",
    "delete": "Remove a tuple.",
    "import": "Take JSON lines into a space.",
    "export": "Print all rows of a space as JSON lines.",
    "info": "Show what a file or folder holds.",
    "report": "Write a page that shows what a file or folder holds.",
    "cat": "Print the rows of logs and snapshots.",
    "verify": "Check a file or folder and list all damage.",
    "repair": "Save what is whole of a damaged folder.",
    "trim": "Cut off what was written ahead of a log's end.",
    "backup": "Copy a store in use, or a server, and check the copy.",
    "archive": "Copy a store elsewhere, again and again, verified.",
    "restore": "Write the state at a point in time.",
    "snapshot": "Write a snapshot of a store.",
    "diff": "Show what changed between two states.",
    "play": "Replay the rows of logs into a running server.",
    "serve": "Serve a store to clients and followers.",
    "config": "Show the configuration that a server would have.",
    "doctor": "Look whether all is there that a store and its server need.",
    "follow": "Copy one upstream and keep the copy up to date.",
    "status": "Show what a server does, or how far upstreams were read.",
    "top": "Show what a server does, again and again.",
    "retain": "List or forget the followers for whom a store keeps its logs.",
    "gaps": "List what upstreams had and a store has not.",
    "forget": "Remove what names a user of a homeserver.",
    "user": "Manage users, roles and their rights.",
    "topic": "List, make, configure, delete and import Tank topics.",
    "tap": "Watch, dump and move what a TAP server has.",
    "capture": "Call a Python function once for each transaction.",
    "changes": "Write the changes of a space into one file, as columns.",
    "pipeline": "Run a job over an archive on Spark.",
    "crashtest": "Crash any program again and again, and check what it left.",
    "bench": "Measure statements, scans, recovery and servers next to peers.",
}
"""Every command and its one-line help, in the order of `--help`."""

_STATEMENTS: Final = ("get", "select", "insert", "replace", "update", "upsert", "delete")
HOMES: Final = {
    **{name: ("statements", name) for name in _STATEMENTS},
    "import": ("rows", "take"),
    "export": ("rows", "give"),
}
"""Module and function of the commands that share a module."""

EXIT_PROBLEM: Final = 1
EXIT_USAGE: Final = 2
EXIT_DAMAGED: Final = 3
EXIT_UNREACHABLE: Final = 4
EXIT_PIPE_CLOSED: Final = 141

_GLOBAL_OPTIONS: Final = {
    "as_json": typer.Option(
        "--json", allow_from_autoenv=False, help="Print results as JSON, for programs."
    ),
    "quiet": typer.Option(
        "--quiet", "-q", allow_from_autoenv=False, help="Print results and errors only."
    ),
    "debug": typer.Option(
        "--debug", allow_from_autoenv=False, help="Show the traceback of an error."
    ),
}


def exit_code(error: BaseException) -> int:
    """The exit code for an error; the table stands at the top."""
    from logweir import errors

    if isinstance(error, errors.WalError):
        cause = error.__cause__
        if isinstance(cause, OSError):
            return EXIT_USAGE if cause.errno in _WRONG_PATH else EXIT_UNREACHABLE
        if isinstance(error, errors.DirectoryLocked):
            return EXIT_UNREACHABLE
        if isinstance(error, errors.WriteFailed | errors.WriterPoisoned):
            return EXIT_PROBLEM
        damaged = errors.CorruptFile, errors.CorruptBlock, errors.ChainGap, errors.RecoveryRefused
        return EXIT_DAMAGED if isinstance(error, damaged) else EXIT_PROBLEM
    if isinstance(error, errors.DecodeError):
        return EXIT_DAMAGED
    if isinstance(error, errors.ConfigError):
        return EXIT_USAGE
    if isinstance(error, errors.Unreachable | errors.RemoteProtocolError):
        return EXIT_UNREACHABLE
    return EXIT_PROBLEM


_WRONG_PATH: Final = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EINVAL, errno.ELOOP),
}


@contextlib.contextmanager
def _reported(out: Output, context: typer.Context | None = None) -> Iterator[None]:
    """Turn what can go wrong into a line on stderr and an exit code. `context`: of the command."""
    from logweir.errors import ConfigError, LogweirError

    try:
        yield
        out.flush()
    except BrokenPipeError:
        # Nobody reads any more: what is still buffered goes nowhere, without a word.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_PIPE_CLOSED) from None
    except LogweirError as error:
        text = error.message
        if context is not None and isinstance(error, ConfigError):
            typed = _as_typed(context, error.key)
            told = text.removeprefix(error.key)
            text = typed + told.removeprefix(f" ({typed})")
        out.error(text, error.hint)
        raise typer.Exit(exit_code(error)) from error
    except OSError as error:
        from logweir.wal.filesystem import explain

        named = explain(error, os.fspath(error.filename or ""))
        named.__cause__ = error
        out.error(named.message, named.hint)
        raise typer.Exit(exit_code(named)) from error


def _as_typed(context: typer.Context, key: str) -> str:
    """A setting's name as whoever gave it wrote it: the option, the argument or the variable; what
    is none of the command's stays as it is."""
    for one in context.command.params:
        options = [text for text in one.opts if text.startswith("--")]
        names = {one.name, *(text.lstrip("-").replace("-", "_") for text in options)}
        if key.replace("-", "_") in names:
            source = context.get_parameter_source(one.name or "")
            if source is None or source.name == "DEFAULT":
                continue  # nobody gave it: another thing has that name
            if source.name == "DEFAULT_MAP":
                return (one.name or "").replace("_", "-")  # as in the file of the configuration
            if source.name == "ENVIRONMENT":
                return str(one.envvar)
            return options[0] if options else (one.metavar or key).strip("[]")
    return key


def _bind(function: Callable[..., int | None]) -> Callable[..., None]:
    """The typer callback of a command: adds the global options, reports errors. A command that has
    a parameter `context` is given typer's."""
    signature = inspect.signature(function, eval_str=True)
    own = [one for one in signature.parameters.values() if one.name not in ("out", "context")]
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
        )
        for name, option in _GLOBAL_OPTIONS.items()
    ]
    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )

    @functools.wraps(function)
    def callback(context: typer.Context, **arguments: Any) -> None:
        chosen = {name: arguments.pop(name) for name in _GLOBAL_OPTIONS}
        for name, value in (context.obj or {}).items():
            chosen[name] = chosen[name] or value
        out = Output(**chosen)
        if "context" in signature.parameters:
            arguments["context"] = context
        with _reported(out, context):
            code = function(out, **arguments)
            if code:
                out.flush()
                raise typer.Exit(code)

    parameters = [context, *own, *shared]
    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    callback.__annotations__ = {one.name: one.annotation for one in parameters}
    return callback


@functools.cache
def load_command(name: str) -> HelpfulCommand:
    """The command `name`, ready to run. `name`: one of `COMMANDS`."""
    home, function = HOMES.get(name, (name, "command"))
    module = importlib.import_module(f"logweir.tools.cli.{home}")
    work = getattr(module, function)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=HelpfulCommand, short_help=COMMANDS[name])(_bind(work))
    command = typer.main.get_command(single)
    assert isinstance(command, HelpfulCommand)
    signature = inspect.signature(work, eval_str=True)
    command.name_values(signature)
    if function == "command":
        command.topics = getattr(module, "TOPICS", {})
        command.more_hint = getattr(module, "MORE_HINT", "")
    if "config" in signature.parameters:
        for one in command.params:
            if getattr(one, "allow_from_autoenv", True):  # not typer's own way: errors name it so
                one.envvar = f"LOGWEIR_{(one.name or '').upper()}"
    return command


class LazyGroup(TyperGroup):
    """A group that knows its commands by name and imports one only when it is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(
            COMMANDS, TyperCommand(None)
        )  # "did you mean" reads the names

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """For listings: a stand-in with the one-line help."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name], rich_markup_mode=None)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the words; help that nobody can be shown is told as any other error."""
        with _reported(Output()):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what its configuration file lacks is told as any other error."""
        with _reported(Output()):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """For running and for completion: the real command."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else None, rest


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"logweir {version('logweir')}")
        raise typer.Exit


app = typer.Typer(
    name="logweir",
    cls=LazyGroup,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


@app.callback()
def _main(
    context: typer.Context,
    as_json: Annotated[bool, _GLOBAL_OPTIONS["as_json"]] = False,
    quiet: Annotated[bool, _GLOBAL_OPTIONS["quiet"]] = False,
    debug: Annotated[bool, _GLOBAL_OPTIONS["debug"]] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version, then stop."
        ),
    ] = False,
) -> None:
    """Keep, inspect, verify, repair and restore change logs in Tarantool's format.

    logweir COMMAND --help explains a command. --json, --quiet and --debug may also stand behind the
    command.
    """
    context.obj = {"as_json": as_json, "quiet": quiet, "debug": debug}


def run() -> None:
    """The program `logweir`: reads sys.argv and exits."""
    for name in ("stdin", "stdout", "stderr"):
        # One that the caller closed: what the program opens next must not take its number.
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A letter that the terminal cannot show must not end the program.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    before = ""
    for argument in sys.argv[1:]:
        if not argument and not before.startswith("--"):
            # As a path it would be the folder that we are in.
            text = "an argument is empty: perhaps a variable of the shell is not set"
            sys.stderr.write(f"logweir: error: {text}\n")
            raise SystemExit(2)
        before = argument
    signal.signal(signal.SIGTERM, _end)
    app(prog_name="logweir")


def _end(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice; Ctrl-C ends the ending
    raise SystemExit(128 + number)  # through every `with`: no process that it started is left
