"""What CALL may call: Python functions that the operator registered, by name.

A function is called with the arguments of the request. Where its first parameter is named `log`,
that is the store. What it returns is the answer: a tuple gives several values, None none, anything
else one. An exception among them, also inside of lists and dicts, is the error that it would be if
it was raised, as a value for those who can read errors, for others its text. It runs in a thread of
its own, beside the connection. Code that a client sends (EVAL) is never run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

from logweir.errors import ConfigError, ErrorCode, LogweirError, RequestError
from logweir.replication.iproto.wire.codec import error_value
from logweir.wal.mp import Ext, Value, pack


class Functions:
    """The functions of one server. `store`: what a parameter named `log` is given; `guarded`: more
    of them, for those only who may do everything."""

    def __init__(
        self,
        functions: Mapping[str, Callable[..., Value]],
        store: object = None,
        *,
        guarded: Mapping[str, Callable[..., Value]] = MappingProxyType({}),
    ) -> None:
        self._functions = {**functions, **guarded}
        self.guarded = frozenset(guarded)
        self._takes_log = {name: _takes_log(one) for name, one in self._functions.items()}
        self._store = store

    def check(self, name: str) -> None:
        """Raises `RequestError` if there is none of that name."""
        if name not in self._functions:
            raise RequestError(ErrorCode.NO_SUCH_PROC, f"Procedure '{name}' is not defined")

    def call(
        self, name: str, arguments: Sequence[Value], *, as_tuples: bool, reads_errors: bool = False
    ) -> list[bytes]:
        """Call one function. Returns its values as MsgPack.

        `as_tuples`: every value becomes an array, as CALL_16 wants; `reads_errors`: who asks can
        read errors that are values. Raises `RequestError`: what the
        function raised, 33 for an unknown name, 32 for anything else that went wrong in it.
        """
        self.check(name)
        function = self._functions[name]
        first = (self._store,) if self._takes_log[name] else ()
        try:
            returned = function(*first, *arguments)
            values = returned if _is_plain_tuple(returned) else (returned,)
            if returned is None:
                values = ()
            told = [_as_tuple(value) if as_tuples else value for value in values]
            try:
                return list(map(pack, told))
            except TypeError:  # some have no form of their own
                return [pack(_with_errors(value, reads_errors)) for value in told]
        except RequestError:
            raise
        except Exception as error:
            raise _refusal(error) from error


def _refusal(error: Exception) -> RequestError:
    """What an exception of a function is for who has called it."""
    if isinstance(error, RequestError):
        return error
    text = str(error)
    if not isinstance(error, LogweirError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return RequestError(ErrorCode.PROC_LUA, text)


def _with_errors(value: Value, reads_errors: bool) -> Value:
    """A value in which exceptions have a form."""
    if isinstance(value, Exception):
        refusal = _refusal(value)
        return error_value(refusal) if reads_errors else refusal.message
    if isinstance(value, list) or _is_plain_tuple(value):
        return [_with_errors(one, reads_errors) for one in value]
    if isinstance(value, dict):
        return {key: _with_errors(one, reads_errors) for key, one in value.items()}
    return value


def _as_tuple(value: Value) -> Value:
    return value if isinstance(value, list) or _is_plain_tuple(value) else [value]


def _is_plain_tuple(value: Value) -> bool:
    """An `Ext`, which is one value, is a tuple, too."""
    return isinstance(value, tuple) and not isinstance(value, Ext)


def _takes_log(function: Callable[..., Any]) -> bool:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return names[:1] == ["log"]


def load_functions(module_name: str) -> Mapping[str, Callable[..., Value]]:
    """The functions of a module: those in its `__all__`, else all public ones made in it.

    Raises `ConfigError` if it cannot be imported, whatever it raises, or holds none.
    """
    try:
        module: ModuleType = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            "functions",
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}",
            hint="give the name under which `import` finds it, and try `import` in Python",
        ) from error
    names = getattr(module, "__all__", None)
    if names is None:
        names = [
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
    found = {name: getattr(module, name) for name in names}
    functions = {name: one for name, one in found.items() if callable(one)}
    if not functions:
        raise ConfigError("functions", f"module {module_name!r} holds no function")
    return functions
