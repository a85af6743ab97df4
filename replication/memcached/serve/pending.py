"""What a request to a vbucket that is pending raises."""

from __future__ import annotations

__all__ = ["Pending"]


class Pending(Exception):
    """A request waits until the state of its vbucket has changed, and nothing was done."""
