"""The report page of an evaluation: one self-contained HTML file with its own small script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from calibrant._version import __version__
from calibrant.report.evaluation.figures import figures
from calibrant.report.evaluation.numbers import ModelNumbers, off
from calibrant.report.evaluation.rows import difference_rows, measure_rows, points, worst_mistakes
from calibrant.report.template import template
from calibrant.selective import RejectionRule

if TYPE_CHECKING:
    from calibrant.report.evaluation.result import Evaluation

MOST_CELLS = 12
"""Values of a row that are shown; a table of two hundred columns would hide the mistakes."""


def render(
    evaluation: Evaluation, *, rows: bool, title: str, card: Mapping[str, Any], rule: RejectionRule | None = None
) -> str:
    """Return the whole page."""
    models = [_model(evaluation, name, rows) for name in evaluation.models]
    window = None if rule is None else rule.window
    data = [figures(evaluation.samples[name], numbers, window) for name, numbers in evaluation.models.items()]
    page: str = template("evaluation.html.j2").render(
        title=title,
        points=points,
        models=models,
        differences=[{**entry, "rows": difference_rows(entry)} for entry in evaluation.differences],
        card=_card(evaluation, card),
        data=as_script(data),
        rule=rule,
        counted=evaluation.row_numbers is None,
        level=next(iter(evaluation.models.values())).level,
    )
    return page


def as_script(data: Any) -> str:
    """JSON for a script element; no text in it can end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _model(evaluation: Evaluation, name: str, rows: bool) -> dict[str, Any]:
    numbers, verdict = evaluation.models[name], evaluation.verdicts[name]
    mistakes = worst_mistakes(
        evaluation.samples[name], evaluation.rows if rows else None, numbers=evaluation.row_numbers
    )
    columns = list(dict.fromkeys(key for m in mistakes for key in m["values"]))[:MOST_CELLS]
    return {
        "name": name,
        "verdict": verdict,
        "measures": measure_rows(numbers),
        "numbers": numbers,
        "classes": [_part(row, numbers) for row in numbers.classes],
        "groups": [_part(row, numbers) for row in numbers.groups],
        "partly": verdict.kind == "calibrated" and bool(off(numbers.classes) or off(numbers.groups)),
        "mistakes": mistakes,
        "columns": columns,
    }


def _part(row: Mapping[str, Any], numbers: ModelNumbers) -> dict[str, Any]:
    sure = row["gap_low"] is not None and (row["gap_low"] > 0 or row["gap_high"] < 0)
    verdict = "within noise" if not sure else "too high" if row["gap"] > 0 else "too low"
    return {**row, "word": verdict}


def _card(evaluation: Evaluation, card: Mapping[str, Any]) -> dict[str, str]:
    numbers = next(iter(evaluation.models.values()))
    facts = {str(key): str(value) for key, value in card.items()}
    facts["rows"] = f"{numbers.n:,}"
    if numbers.n_classes is not None:
        facts["classes"] = f"{numbers.n_classes:,}"
    facts["models"] = ", ".join(evaluation.models)
    facts["settings"] = f"{numbers.bins} bins, {numbers.level:.0%} intervals"
    facts["made with"] = f"calibrant {__version__}, {datetime.now(UTC):%Y-%m-%d}"
    return facts
