"""From disk and back: opening a folder, snapshots, what keeps state and log together."""
