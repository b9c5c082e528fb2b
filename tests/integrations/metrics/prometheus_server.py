"""Debian's Prometheus, which scrapes one service and evaluates alert rules, on a quick scale of time."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from leasehold_lab.servers.base import Server

EVERY = "300ms"
"""How often it scrapes and evaluates."""


class PrometheusServer(Server):
    """One server with one target and one file of rules."""

    programs = ("prometheus",)
    package = "prometheus"

    def __init__(self, target: int, rules: str) -> None:
        super().__init__()
        self._target, self._rules = target, rules

    @property
    def version(self) -> str:
        return "prometheus"

    def _arguments(self) -> Sequence[str]:
        (self.folder / "rules.yml").write_text(self._rules)
        (self.folder / "prometheus.yml").write_text(f"""
global: {{scrape_interval: {EVERY}, evaluation_interval: {EVERY}}}
rule_files: [rules.yml]
scrape_configs: [{{job_name: app, static_configs: [{{targets: ["127.0.0.1:{self._target}"]}}]}}]
""")
        return (
            f"--config.file={self.folder}/prometheus.yml",
            f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
        )

    def _ready(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)

    def get(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Any]:
        return list(self.get("query", query=expression)["result"])

    def firing(self) -> set[str]:
        alerts = self.get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def quick(rules: Path) -> str:
    """Return rules with the same expressions on a quick scale: minutes are seconds, and all waits half a second."""
    text = re.sub(r"\[\d+m\]", "[5s]", rules.read_text(encoding="utf-8"))
    return re.sub(r"for: \w+", "for: 500ms", re.sub(r"offset \d+m", "offset 5s", text))
