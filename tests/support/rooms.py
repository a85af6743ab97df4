"""Which test files belong to which room of the house, and which are quick.

A room's tests stand in several folders, by method. A file may belong to several rooms.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

ROOMS: dict[str, tuple[str, ...]] = {
    "wal": (
        *(
            "bad_places",
            "block*",
            "columns",
            "built",
            "crc32c",
            "damaged_samples",
            "decoders",
            "targets",
            "failing_calls",
            "failing_copies",
            "unfinished_copies",
        ),
        *(
            "failing_calls",
            "failpoints",
            "faults",
            "follow",
            "kernel*",
            "length_flips",
            "meta",
            "mp",
        ),
        *(
            "power_cut",
            "render",
            "newer_rows",
            "ordered_blocks",
            "zstd_frames",
            "selection",
            "summary",
            "vclock",
            "xrow",
            "lost_lsns",
            "stops_in_a_write",
            "short_writes",
        ),
        *(
            "agreement",
            "durable_names",
            "end_mark",
            "leases",
            "names",
            "stops_in_*",
            "written_ahead*",
        ),
    ),
    "recovery": (
        *(
            "agreement",
            "end_mark",
            "cli_crashtest",
            "crash_*",
            "cli_repair",
            "cli_backup",
            "cli_verify",
            "damaged_samples",
            "examine",
            "faults",
            "kill_loop",
            "testing_*",
        ),
        *("memory", "recovery_*", "repair_restore", "replay", "power_cut"),
    ),
    "store": (
        *("aio*", "append_units", "bootstrap", "bulk", "change_while_*", "checkpoints", "keys"),
        *(
            "collations",
            "definitions",
            "embedded_rows",
            "error_paths",
            "face",
            "format",
            "grants_of_who_is_gone",
            "jsonpath",
            "large_tuples",
            "long_keys",
        ),
        *(
            "lmdb_*",
            "position_of_rows_*",
            "replicated_rows_*",
            "change_behind_*",
            "lone_kill",
            "whole_store",
            "older_folders",
            "pipelined_insert_*",
            "reference*",
            "opening_after_*",
            "reopening_*",
            "schema",
            "sequences",
            "sql_texts",
        ),
        *(
            "state_*",
            "store_*",
            "syncer_*",
            "listen",
            "unlogged_time",
            "unread_log_keeps_newer",
            "update",
            "values",
            "async_rows_*",
            "loop_of_*",
        ),
        *(
            "failing_system_calls",
            "named",
            "folder_named_icu",
            "fork",
            "interrupts",
            "synchronous_rows",
        ),
        "settled_*",
        "expiry*",
        *(
            "applied_rows",
            "traced_commits",
            "transaction_rows",
            "upsert_of_keys",
            "reads",
            "key_history",
            "as_of",
            "memtable*",
            "layers",
            "kernel_rooms",
            "statement_kernel*",
            "statements_sanitized",
        ),
    ),
    "hub": (
        *("async_rows_*", "compare_servers", "operating", "metrics", "replication_*", "retention"),
        *("upstream_names", "verifiers", "follower*", "mesh*", "reader_*"),
        *("listener_*", "clients_that_leave", "hub", "hub_*", "outgoing"),
        "server_status",
    ),
    "iproto": (
        "iproto_*",
        "many_stores",
        "follower_contract",
        "changes",
        "capture*",
        "applied_rows",
        "synchronous_rows",
        "pipelined_*",
        "realtarantool",
        "fuzz_iproto",
        "kernel_rooms",
        "read_kernels",
    ),
    "tank": (
        *("tank_*", "follower_contract", "fuzz_tank", "kernel_rooms", "listener_rights"),
        "copy_stores",
    ),
    "memcached": (
        "memcached_*",
        "copy_stores",
        "follower_contract",
        "bucket_*",
        "fuzz_bucket_servers",
        "cas_of_two_protocols",
        "item_changes",
        "read_kernels",
        "fuzz_memcached",
    ),
    "greenstack": (
        "greenstack_*",
        "copy_stores",
        "follower_contract",
        "bucket_*",
        "fuzz_bucket_servers",
        "cas_of_two_protocols",
        "item_changes",
        "read_kernels",
        "fuzz_greenstack",
    ),
    "synapse": (
        "synapse_*",
        "copy_stores",
        "follower_contract",
        "real_synapse",
        "fuzz_synapse",
        "listener_rights",
    ),
    "redis": ("redis_*", "listener_rights"),
    "pipeline": (
        "pipeline_*",
        "spark_*",
        "batches_of_an_url",
        "kernel_rooms",
        "settled_*",
        "secrets",
    ),
    "archive": ("archive*", "secrets"),
    "tools": (
        "audit",
        "release",
        "bench_*",
        "cli*",
        "docs",
        "house",
        "leaks",
        "mutants",
        "tour",
        "types",
        "security",
        "spark_example",
        "web_*",
    ),
}
"""Room to the names of its test files, without `test_` and `.py`."""

QUICK: tuple[str, ...] = (
    *("block*", "columns", "crc32c", "face", "format", "iproto_access", "keys"),
    *("iproto_codec", "iproto_session", "jsonpath", "meta", "pipeline_fold", "pipeline_typed"),
    *(
        "replication_hub",
        "replication_places",
        "replication_urls",
        "schema",
        "selection",
        "summary",
    ),
    *("greenstack_codec", "greenstack_messages", "greenstack_session", "summary"),
    *("synapse_codec", "synapse_cursors", "synapse_session", "tank_codec", "tank_session"),
    *(
        "memcached_codec",
        "memcached_names",
        "memcached_session",
        "vclock",
        "verifiers",
        "xrow",
        "follow",
        "examine",
        "store_api",
        "update",
    ),
)
"""Files of `unit` that start no process, and take seconds in all."""


def rooms_of(path: Path) -> set[str]:
    """The rooms that a test file belongs to."""
    name = path.stem.removeprefix("test_")
    return {
        room for room, names in ROOMS.items() if any(fnmatch(name, pattern) for pattern in names)
    }


def is_quick(path: Path) -> bool:
    """Whether a test file is one of the quick ones."""
    name = path.stem.removeprefix("test_")
    return path.parent.name == "unit" and any(fnmatch(name, pattern) for pattern in QUICK)
