"""A folder → a report (reads only) → a decision → its rows; repair, restore, the fault kit.

`examine` says what a folder holds and what is wrong with it, `plan` decides how it may be opened,
`snapshot_blocks` and `replay` read what must be applied.
"""

from logweir.recovery.examine import examine
from logweir.recovery.policy import RecoveryPlan, plan
from logweir.recovery.repair import RepairResult, repair
from logweir.recovery.replay import Batch, replay, snapshot_blocks
from logweir.recovery.report import FileReport, Hole, LogPosition, RecoveryReport
from logweir.recovery.restore import RestoreResult, restore

__all__ = [
    "Batch",
    "FileReport",
    "Hole",
    "LogPosition",
    "RecoveryPlan",
    "RecoveryReport",
    "RepairResult",
    "RestoreResult",
    "examine",
    "plan",
    "repair",
    "replay",
    "restore",
    "snapshot_blocks",
]
