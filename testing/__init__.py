"""Crash tests in a program's own test suite; see docs/testing.md.

Nothing here needs pytest: `plugin` is for it, and is loaded by it. `strategies` needs Hypothesis.
Names are imported when they are first used, so that the plug-in costs nothing in a suite that does
not use it.
"""

from typing import TYPE_CHECKING, Final

from logweir.lazy import lazily

if TYPE_CHECKING:
    from logweir.recovery.faults import Fault, FaultyFileSystem, SimFileSystem, every_fault
    from logweir.testing.clock import SimClock
    from logweir.testing.damage import damaged
    from logweir.testing.forking import in_child
    from logweir.testing.interrupting import Interrupter
    from logweir.testing.network import SimNetwork
    from logweir.testing.programs import crash_program
    from logweir.testing.scheduler import Scheduler, Stuck
    from logweir.testing.store import CrashStore
    from logweir.testing.valve import Valve
    from logweir.wal.failpoint import arm, disarm

__all__ = [
    "CrashStore",
    "Fault",
    "FaultyFileSystem",
    "Interrupter",
    "Scheduler",
    "SimClock",
    "SimFileSystem",
    "SimNetwork",
    "Stuck",
    "Valve",
    "arm",
    "crash_program",
    "damaged",
    "disarm",
    "every_fault",
    "in_child",
]

_HOMES: Final = {
    "CrashStore": "logweir.testing.store",
    "Fault": "logweir.recovery.faults",
    "FaultyFileSystem": "logweir.recovery.faults",
    "Interrupter": "logweir.testing.interrupting",
    "Scheduler": "logweir.testing.scheduler",
    "SimClock": "logweir.testing.clock",
    "SimFileSystem": "logweir.recovery.faults",
    "SimNetwork": "logweir.testing.network",
    "Stuck": "logweir.testing.scheduler",
    "Valve": "logweir.testing.valve",
    "arm": "logweir.wal.failpoint",
    "crash_program": "logweir.testing.programs",
    "damaged": "logweir.testing.damage",
    "disarm": "logweir.wal.failpoint",
    "every_fault": "logweir.recovery.faults",
    "in_child": "logweir.testing.forking",
}

__getattr__ = lazily(__name__, _HOMES)
