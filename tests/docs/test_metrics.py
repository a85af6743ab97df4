"""Every metric, log event and option of the server stands on the page about monitoring."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from logweir.replication.metrics import ArchiveFigures, Metrics, StreamFigures
from logweir.replication.runner import STATES
from logweir.tools.cli.configfile import read_config
from logweir.tools.cli.main import load_command

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "tools" / "deploy"
ALERTS = (DEPLOY / "alerts.yml").read_text()
PAGE = (ROOT / "docs" / "monitoring.md").read_text()


def test_every_metric_is_documented_and_no_other() -> None:
    """Names on the page are those that the server serves, besides those of every process."""
    families = {
        family.name + ("_total" if family.type == "counter" else "")
        for family in Metrics().registry.collect()
        if not family.name.startswith("process_")
    }
    assert set(re.findall(r"`(logweir_[a-z_]+)`", PAGE)) == families


def served() -> dict[str, set[str]]:
    """Every series that a server serves to which everything has happened, with its labels, and
    those that Prometheus adds."""
    metrics = Metrics()
    metrics.opened("tank")
    metrics.refused("tank", "memory")
    metrics.login_failed("tank")
    metrics.closed("tank", 1, 1)
    metrics.answered("tank", 1, 1)
    metrics.committed(0.1)
    metrics.follower_lag("tank", "one", 1)
    metrics.pinned("one", 1)
    metrics.evicted("one")
    metrics.stream_gap()
    metrics.space_checksum("t", 1, 1)
    metrics.source_state("url", "stopped", STATES)
    metrics.source_rows("url", 1)
    metrics.source_streams("url", lambda: [StreamFigures("events", "master", 1, 1, 1, True)])
    metrics.archive(lambda: ArchiveFigures("place", 1, 1, 1.0, 1.0, 1))
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        sample.name: {"job", "instance", *sample.labels}
        for family in families
        for sample in family.samples
    }


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression of the rules and the dashboard, and the text that shows its labels."""
    for rule in re.split(r"^ +- alert: ", ALERTS, flags=re.M)[1:]:
        found = re.search(r"expr: (?:>-\n)?(.*?)\n +(?:for|labels):", rule, re.S)
        assert found is not None, rule
        yield found[1], rule.replace("$labels.", "")
    board = json.loads((DEPLOY / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            query = variable["query"]["query"]
            yield query, "{{" + query.rpartition(",")[2].strip(" )") + "}}"


def test_rules_and_dashboard_ask_for_what_is_served() -> None:
    """Every name, label and reason in an expression, and every label in its text, is there."""
    series = served()
    asked = list(expressions())
    assert len(asked) > 30
    for expression, text in asked:
        names = re.findall(r"\b((?:logweir|process)_\w+)", expression)
        assert names, expression
        for name in names:
            assert name in series, expression
        labels = set.union(*(series[name] for name in names))
        selected = re.findall(r'(\w+)=~?"', expression)
        grouped = re.findall(r"by \(([^)]*)\)", expression)
        shown = re.findall(r"\{\{ ?(\w+) ?\}\}", text)
        assert {*selected, *shown} <= labels, expression
        assert {one.strip() for group in grouped for one in group.split(",")} <= labels, expression
        if grouped:
            assert set(shown) <= {one.strip() for group in grouped for one in group.split(",")}
        for state in re.findall(r'state=~?"([^"]*)"', expression):
            assert set(state.split("|")) <= set(STATES)


def test_every_alert_is_explained_and_no_other() -> None:
    """The table of alarms holds those of the rules."""
    rules = re.findall(r"- alert: (\w+)", ALERTS)
    assert re.findall(r"^\| `(Logweir\w+)` \|", PAGE, re.M) == rules


def promtool(folder: Path, series: dict[str, str], at: str, alerts: dict[str, Any]) -> None:
    """Let Prometheus' own tool say which of some alerts fire. `series`: values by the minute."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool on this machine")
    (folder / "alerts.yml").write_text(ALERTS)
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": count}],
            }
            for name, count in alerts.items()
        ],
    }
    told = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [case]}
    (folder / "test.json").write_text(json.dumps(told))
    words = [program, "test", "rules", "test.json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire(tmp_path: Path) -> None:
    """Prometheus fires each for what it is for, also for a counter that begins with what
    happened, and none of a server to which nothing happens."""
    quiet = {
        "logweir_stream_gaps_total": "0x90",
        'logweir_source_state{url="a", state="stopped"}': "0x90",
        'logweir_source_state{url="a", state="following"}': "1x90",
        'logweir_retention_pinned_bytes{follower="b"}': "5e9x90",
        'logweir_retention_evicted_total{follower="b"}': "3x90",
        'logweir_link_refused_total{scheme="tank", reason="memory"}': "3x90",
        'logweir_archive_lag_seconds{place="a"}': "0x80 200x10",
        'logweir_archive_errors_total{place="a"}': "9x90",
        'logweir_commit_seconds_bucket{le="0.001"}': "0+60x90",
        'logweir_commit_seconds_bucket{le="+Inf"}': "0+60x90",
    }
    promtool(tmp_path, quiet, "85m", dict.fromkeys(re.findall(r"- alert: (\w+)", ALERTS), 0))
    bad = {
        "logweir_stream_gaps_total": "0x80 1x9",
        'logweir_source_state{url="a", state="stopped"}': "1x200",
        'logweir_source_state{url="b", state="waiting"}': "1x200",
        'logweir_source_stream_waits{url="c", stream="d", writer="e"}': "1x200",
        'logweir_source_stream_gaps_total{url="c", stream="d", writer="e"}': "0x80 1x9",
        'logweir_retention_pinned_bytes{follower="f"}': "2e9+1e6x200",
        'logweir_retention_evicted_total{follower="g"}': "_x80 1x9",
        'logweir_link_refused_total{scheme="tank", reason="memory"}': "_x80 1x9",
        'logweir_archive_lag_seconds{place="h"}': "0+60x200",
        'logweir_archive_errors_total{place="h"}': "0+1x200",
        'logweir_login_failed_total{scheme="tank"}': "0+600x200",
        'logweir_commit_seconds_bucket{le="1.024"}': "0+60x200",
        'logweir_commit_seconds_bucket{le="4.096"}': "0+80x200",
        'logweir_commit_seconds_bucket{le="+Inf"}': "0+80x200",
    }
    promtool(tmp_path, bad, "85m", dict.fromkeys(re.findall(r"- alert: (\w+)", ALERTS), 1))


def test_example_of_a_config_file_is_one(tmp_path: Path) -> None:
    """The file shown is taken."""
    text = PAGE.split("```toml\n")[1].split("```")[0]
    file = tmp_path / "serve.toml"
    file.write_text(text)
    assert read_config(file, load_command("serve"))["retain_max_bytes"] == 10_000_000_000
