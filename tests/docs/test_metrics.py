"""Every metric, log event and option of the server stands on the page about monitoring."""

from __future__ import annotations

import re
from pathlib import Path

from logweir.replication.metrics import Metrics
from logweir.tools.cli.configfile import read_config
from logweir.tools.cli.main import load_command

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()


def test_every_metric_is_documented_and_no_other() -> None:
    """Names on the page are those that the server serves, besides those of every process."""
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in Metrics().registry.collect()
        if not family.name.startswith("process_")
    }
    assert set(re.findall(r"`(logweir_[a-z_]+)`", PAGE)) == families


def test_example_of_a_config_file_is_one(tmp_path: Path) -> None:
    """The file shown is taken."""
    text = PAGE.split("```toml\n")[1].split("```")[0]
    file = tmp_path / "serve.toml"
    file.write_text(text)
    assert read_config(file, load_command("serve"))["retain_max_bytes"] == 10_000_000_000
