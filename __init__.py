"""logweir: a durable, append-only change log with a Tarantool-format write-ahead log."""
