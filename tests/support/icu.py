"""Tests that need the collations of ICU."""

from __future__ import annotations

import pytest

from logweir.store.schema import collation

needs_icu = pytest.mark.skipif(not collation.version(), reason="PyICU is not installed")
