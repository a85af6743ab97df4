"""From bytes to rows to files, and back."""

from pathlib import Path

from logweir.wal.built import check_kernels

check_kernels(Path(__file__).parent.parent)
