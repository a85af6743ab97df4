"""The fault kit: what a disk can do to a log, made to happen on purpose.

* `surviving`: what a disk may hold after a power cut, the one model of it;
* `SimFileSystem`: a disk in memory that can lose power at any moment (`crash`);
* `FaultyFileSystem`: another file system whose k-th call fails;
* `every_fault`: runs a scenario once for each call that can fail.

Nothing here is used by the log itself. All randomness comes from a number that the caller gives.
"""

from logweir.recovery.faults.faulty import Fault, FaultyFileSystem, Run, every_fault
from logweir.recovery.faults.sim import SimFileSystem

__all__ = [
    "Fault",
    "FaultyFileSystem",
    "Run",
    "SimFileSystem",
    "every_fault",
]
