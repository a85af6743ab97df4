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

from logweir.replication.metrics import ArchiveFigures, Metrics, StreamFigures, TopicFigures
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
    assert set(re.findall(r"`((?:logweir|tanksrv)_[a-z_]+)`", PAGE)) == families


def exposition() -> str:
    """What a server serves to which everything has happened."""
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
    metrics.topics(lambda: [TopicFigures("t", 1, 1, 1)])
    metrics.archive(lambda: ArchiveFigures("place", 1, 1, 1.0, 1.0, 1))
    return metrics.render().decode()


def served() -> dict[str, set[str]]:
    """Every series of it, with its labels, and those that Prometheus adds."""
    return {
        sample.name: {"job", "instance", *sample.labels}
        for family in text_string_to_metric_families(exposition())
        for sample in family.samples
    }


NO_BASE_UNIT = re.compile(
    r"_(milli|micro|nano|kilo|mega|giga|kibi|mebi|gibi)|_(ms|us|ns|minutes?|hours?|days?|weeks?)(_|$)"
    r"|_(bits?|kb|mb|gb|kib|mib|gib|percent|celsius_degrees|fahrenheit)(_|$)"
)
UNITS = ("_seconds", "_bytes", "_ratio", "_celsius", "_volts", "_meters")
OF_LIBRARY = re.compile(r"process_|logweir_.*_created$")
"""Names that the client library makes itself."""


def broken_rules(text: str) -> list[str]:
    """What in an exposition breaks the rules for names of Prometheus (its page "Metric and label
    naming", and those that `promtool check metrics` looks at)."""
    counters = re.findall(r"^# TYPE (\S+) counter$", text, re.M)  # the parser adds _total itself
    found = [f"{one} is a counter without _total" for one in counters if one[-6:] != "_total"]
    taken: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        samples = {sample.name for sample in family.samples}
        for name in samples | {family.name}:
            if taken.setdefault(name, family.name) != family.name:
                found.append(f"{name} is of {taken[name]} and of {family.name}")
        if OF_LIBRARY.match(family.name):
            continue
        base = family.name.removesuffix("_total")
        if not re.fullmatch(r"(logweir|tanksrv)(_[a-z][a-z0-9]*)+", family.name):
            found.append(f"{family.name} is not logweir_… in small letters")
        if NO_BASE_UNIT.search(family.name):
            found.append(f"{family.name} has no base unit")
        if any(unit in base and not base.endswith(unit) for unit in UNITS):
            found.append(f"{family.name} has its unit inside")
        if not family.documentation.strip():
            found.append(f"{family.name} has no help")
        if family.type == "gauge" and family.name.endswith(("_total", "_count", "_sum", "_bucket")):
            found.append(f"{family.name} is a gauge that is named as another kind")
        if re.search(r"_(counter|gauge|histogram|summary|metric)(_|$)", family.name):
            found.append(f"{family.name} names its kind")
        for label in {label for sample in family.samples for label in sample.labels}:
            bucket = label == "le" and family.type == "histogram"
            if not bucket and (label in ("le", "quantile", "job", "instance") or "__" in label):
                found.append(f"{family.name} has the reserved label {label}")
            if f"_by_{label}" in family.name:
                found.append(f"{family.name} names its label {label}")
    return found


def test_names_keep_the_rules_of_prometheus() -> None:
    """All of them, as they are served."""
    assert broken_rules(exposition()) == []


@pytest.mark.parametrize(
    ("kind", "line", "complaint"),
    [
        ("counter", "logweir_a_b 1", "without _total"),
        ("gauge", "logweir_a_total 1", "another kind"),
        ("gauge", "logweir_wait_ms 1", "no base unit"),
        ("gauge", "logweir_size_kilobytes 1", "no base unit"),
        ("gauge", "logweir_seconds_waited 1", "unit inside"),
        ("gauge", "logweir_aB 1", "small letters"),
        ("gauge", "other_a 1", "small letters"),
        ("gauge", 'logweir_a{le="1"} 1', "reserved"),
        ("gauge", 'logweir_a{instance="1"} 1', "reserved"),
        ("gauge", 'logweir_lag_by_url{url="1"} 1', "names its label"),
        ("gauge", "logweir_a_gauge 1", "names its kind"),
        ("gauge", "logweir_commit_seconds_count 1", "and of"),
    ],
)
def test_each_rule_can_be_broken(kind: str, line: str, complaint: str) -> None:
    """One bad metric beside those that are served gives a complaint."""
    name = re.split(r"[ {]", line)[0]
    text = f"# HELP {name} some help\n# TYPE {name} {kind}\n{line}\n"
    assert any(complaint in one for one in broken_rules(exposition() + text))
    bare = "# TYPE logweir_a gauge\nlogweir_a 1\n"
    assert broken_rules(bare) == ["logweir_a has no help"]


def test_prometheus_own_tool_finds_nothing_in_the_names() -> None:
    """`promtool check metrics` is silent."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("no promtool on this machine")
    words = [program, "check", "metrics"]
    done = subprocess.run(words, input=exposition(), capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


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
