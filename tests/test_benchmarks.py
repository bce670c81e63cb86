"""The benchmarks' reports: what their templates use is what the scripts give them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from jinja2 import Environment, meta

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("script", "template"), [("quality_report.py", "quality.md.j2"), ("performance.py", "performance.md.j2")]
)
def test_templates_get_what_they_use(script: str, template: str) -> None:
    calls = (node for node in ast.walk(ast.parse((BENCHMARKS / script).read_text())) if isinstance(node, ast.Call))
    renders = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "render"]
    (given,) = ({keyword.arg for keyword in call.keywords} for call in renders)
    environment = Environment()
    environment.filters |= dict.fromkeys(("thousands", "nats"), str)
    used = meta.find_undeclared_variables(environment.parse((BENCHMARKS / template).read_text()))
    assert used == given
