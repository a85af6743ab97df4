"""How a command's help is set: values by names that people read, not by Python's types."""

from __future__ import annotations

import inspect
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.core import TyperCommand

__all__ = ["HelpfulCommand", "value_name"]


def value_name(option: str, annotation: Any) -> str:
    """What stands for the value of an option in its help: `N`, `PATH`, the choices, or its name.

    `annotation`: of its parameter, with or without `Annotated`.
    """
    kinds = [annotation]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return "|".join(str(one.value) for one in kind)
        if get_origin(kind) is Literal:
            return "|".join(map(str, get_args(kind)))
        kinds += [one for one in get_args(kind) if isinstance(one, type) or get_args(one)]
    if int in kinds or float in kinds:
        return "N"
    return "PATH" if Path in kinds else option.lstrip("-").upper().replace("-", "_")


class HelpfulCommand(TyperCommand):
    """A command whose every option names its value."""

    def name_values(self, signature: inspect.Signature) -> None:
        """Name the values that the options' own declarations do not. `signature`: of the work."""
        for one in self.params:
            declared = signature.parameters.get(one.name or "")
            if declared is not None and one.param_type_name == "option":
                one.metavar = one.metavar or value_name(one.opts[0], declared.annotation)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] DIR [NAME]...`: what may be left out in brackets."""
        pieces = ["[OPTIONS]"]
        for one in self.params:
            if one.param_type_name == "argument":
                name = one.metavar or (one.name or "").upper()
                more = "..." if one.nargs != 1 and not name.endswith("...") else ""
                pieces.append((name if one.required or name[0] == "[" else f"[{name}]") + more)
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """The tables of arguments and options."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            rows = [
                record
                for one in self.get_params(ctx)
                if one.param_type_name == kind and (record := one.get_help_record(ctx))
            ]
            if kind == "argument":
                rows = [(name.partition(" ")[0], text) for name, text in rows]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
