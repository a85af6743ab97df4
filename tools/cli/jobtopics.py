"""What `logweir pipeline JOB --help` tells of each job."""

from __future__ import annotations

from typing import Final

from logweir.tools.cli.commandhelp import Topic

TOPICS: Final = {
    "verify": Topic(
        "Check every file and the chain. Exit code 3 if anything is damaged.",
        ("level", "plot"),
        "pipeline verify data",
    ),
    "compact": Topic(
        "Make one new snapshot of a snapshot and the logs behind it, in the folder --to.",
        ("to", "at_vclock", "at_time", "snapshot", "parts", "plot"),
        "pipeline compact data --to backup",
    ),
    "export": Topic(
        "Write changes, or the state, to Parquet, JSON lines, CSV or Delta in the folder --to.",
        (
            *("to", "format", "what", "space", "integers", "decimals", "at_vclock", "at_time"),
            *("option", "plot"),
        ),
        "pipeline export data --to orders-parquet --space orders --option time_from=2026-01-01",
    ),
    "cdc": Topic(
        "Write changes as they come, each once, going on where --checkpoint says; or, with "
        "--mirror, keep a table of what the space has.",
        (
            *("to", "checkpoint", "every", "mirror", "format", "space", "integers", "decimals"),
            *("option", "plot"),
        ),
        "pipeline cdc data --to orders --checkpoint orders-checkpoint --space orders --mirror",
    ),
    "state": Topic(
        "Print all tuples at a position, or at the end, as JSON lines.",
        ("space", "at_vclock", "at_time", "snapshot", "parts", "plot"),
        "pipeline state data --space orders --at-time 2026-01-01",
    ),
    "diff": Topic(
        "Print what has to change in the first PATH to become the second. Exit code 1 if "
        "anything has.",
        ("at_vclock", "at_time", "plot"),
        "pipeline diff data data --at-time 2026-01-01",
    ),
    "stats": Topic(
        "Count rows, bytes, lsns and times by kind of file, space and type of row.",
        ("option", "plot"),
        "pipeline stats data --option recursive=true --plot spaces.png",
    ),
    "import": Topic(
        "Take Parquet, CSV or JSON lines into --space of the store --to; of format tank a broker's "
        "folder. Exit code 3 if that is damaged.",
        ("to", "format", "space", "primary", "fields"),
        "pipeline import orders-parquet --to store --space orders --primary id",
    ),
}
"""What `logweir pipeline JOB --help` tells."""
