"""Jobs on whole archives: verify, compact, export, state, diff, stats, cdc, import.

Their cores are plain functions on Arrow batches and bytes; what runs on Spark is put around them.
"""
