"""Known weaknesses of what is installed here: pip-audit, and whether it could look at all.

    python -P -m logweir.tools.audit

pip-audit says "no known vulnerabilities" also of packages that its service does not know, as behind
an index that is a mirror. Here what was not looked up is told, and is no success: exit code 0 if
each package was looked up and none is affected, 1 if one is, 4 if some or all were not looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

_FOUND = 1
_NOT_LOOKED_UP = 4


def verdict(report: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit code, and lines to print, for a report of pip-audit in JSON."""
    packages = [one for one in report["dependencies"] if one["name"] != "logweir"]
    lines = [
        f"{one['name']} {one['version']}: {weakness['id']}, mended in "
        f"{', '.join(weakness['fix_versions']) or 'no version yet'}"
        for one in packages
        for weakness in one.get("vulns", ())
    ]
    skipped = [one["name"] for one in packages if "skip_reason" in one]
    if lines:
        return _FOUND, lines
    if skipped or not packages:
        shown = f" ({', '.join(skipped[:5])}, …)" if skipped else ""
        said = f"NOT LOOKED UP: {len(skipped)} of {len(packages)} packages{shown}"
        return _NOT_LOOKED_UP, [f"{said}: the advisories cannot be reached, or do not know them"]
    return 0, [f"{len(packages)} packages were looked up, none has a known weakness"]


def main() -> int:
    """Run pip-audit on this environment. Returns the exit code."""
    command = [sys.executable, "-P", "-m", "pip_audit", "--skip-editable", "--format", "json"]
    done = subprocess.run(  # noqa: S603 of names that stand above
        [*command, "--progress-spinner", "off"], capture_output=True, text=True
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        print(done.stderr[-2000:], file=sys.stderr)
        report = {"dependencies": []}
    code, lines = verdict(report)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
