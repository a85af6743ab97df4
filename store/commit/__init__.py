"""The one way to durability: groups, rows, the queue, the thread that syncs."""
