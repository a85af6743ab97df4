"""The fault kit: what a disk and a process can do to a log, made to happen on purpose.

* `SimFileSystem`: a disk in memory that can lose power at any moment (`crash`);
* `FaultyFileSystem`: another file system whose k-th call fails;
* `every_fault`: runs a scenario once for each call that can fail;
* `crashtest`: kills a writing process at random moments and looks at what it left.

Nothing here is used by the log itself. All randomness comes from a number that the caller gives.
"""

from logweir.recovery.faults.crashtest import CrashTestResult, crashtest
from logweir.recovery.faults.faulty import Fault, FaultyFileSystem, Run, every_fault
from logweir.recovery.faults.sim import SimFileSystem

__all__ = [
    "CrashTestResult",
    "Fault",
    "FaultyFileSystem",
    "Run",
    "SimFileSystem",
    "crashtest",
    "every_fault",
]
