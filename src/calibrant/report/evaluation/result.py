"""The result of `evaluate`: numbers and verdicts, with methods to print, plot and write a page."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.base.atomic_write import write_text_whole
from calibrant.report.evaluation.mistakes import worst_mistakes
from calibrant.report.evaluation.numbers import Measure, ModelNumbers
from calibrant.report.evaluation.reading import Sample
from calibrant.report.evaluation.verdict import CalibrationVerdict, judge
from calibrant.report.numbers import format_number, format_signed
from calibrant.selective import RejectionRule

MOST_GROUPS = 20
"""Groups that are printed as text; the page and `to_dict` have more."""
_POINTS = ("accuracy", "ece", "smooth_ece", "mce", "classwise_ece")
"""Measures that are fractions and are shown in percentage points."""


@dataclass(frozen=True)
class Evaluation:
    """The result of `calibrant.evaluate`; `print` it, show it in a notebook, or write it with `to_html`.

    Attributes
    ----------
    models : dict
        The `ModelNumbers` of each model, by name.
    differences : list of dict
        Paired differences of each further model to the first: value, low, high and p_value of accuracy, NLL, Brier
        score and ECE.
    """

    models: dict[str, ModelNumbers]
    differences: list[dict[str, Any]]
    samples: dict[str, Sample] = field(repr=False)
    rows: Any = field(default=None, repr=False)
    row_numbers: Any = field(default=None, repr=False)

    @property
    def verdicts(self) -> dict[str, CalibrationVerdict]:
        """The verdict on each model."""
        return {name: judge(numbers) for name, numbers in self.models.items()}

    @property
    def verdict(self) -> CalibrationVerdict:
        """The verdict on the first model."""
        return next(iter(self.verdicts.values()))

    def __str__(self) -> str:
        parts = []
        for name, numbers in self.models.items():
            verdict = self.verdicts[name]
            head = f"{name}: " if len(self.models) > 1 else ""
            lines = [head + verdict.sentence, *verdict.notes, "", _text_table(measure_rows(numbers))]
            split = {part: format_number(value, 4) for part, value in numbers.split.items()}
            lines.append(
                f"Brier score {split['brier']} = miscalibration {split['miscalibration']} "
                f"− discrimination {split['discrimination']} + uncertainty {split['uncertainty']}"
            )
            points = [f"{p['accuracy']:.1%} of the surest {p['coverage']:.0%}" for p in numbers.risk["points"]]
            parts.append("\n".join([*lines, f"Right: {', '.join(dict.fromkeys(points))}."]))
            if numbers.groups:
                parts.append(_text_table(group_rows(numbers)))
        for entry in self.differences:
            rows = [["difference", "value", "interval", "p"], *difference_rows(entry)]
            parts.append(f"{entry['model']} minus {entry['minus']}\n" + _text_table(rows))
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        blocks = []
        for name, numbers in self.models.items():
            verdict = self.verdicts[name]
            head = f"<strong>{html.escape(name)}</strong>: " if len(self.models) > 1 else ""
            blocks.append(f"<p>{head}<strong>{html.escape(verdict.sentence)}</strong></p>")
            blocks += [f"<p>{html.escape(note)}</p>" for note in verdict.notes]
            blocks.append(_html_table(measure_rows(numbers)))
        for entry in self.differences:
            title = html.escape(f"{entry['model']} minus {entry['minus']}")
            rows = [["difference", "value", "interval", "p"], *difference_rows(entry)]
            blocks.append(f"<p>{title}</p>" + _html_table(rows))
        return f"<div>{''.join(blocks)}</div>"

    def to_dict(self, *, rows: bool = True, mistakes: int = 25) -> dict[str, Any]:
        """Return everything as plain values for JSON; `rows=False` leaves out the values of rows."""
        row_values = self.rows if rows else None
        models = [
            {
                **numbers.to_dict(),
                "verdict": {
                    "kind": self.verdicts[name].kind,
                    "sentence": self.verdicts[name].sentence,
                    "notes": list(self.verdicts[name].notes),
                },
                "mistakes": worst_mistakes(self.samples[name], row_values, mistakes, self.row_numbers),
            }
            for name, numbers in self.models.items()
        ]
        content: dict[str, Any] = plain({"models": models, "differences": self.differences})
        return content

    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        rows: bool = True,
        title: str = "Calibration report",
        card: Mapping[str, Any] | None = None,
        rule: RejectionRule | None = None,
    ) -> str:
        """Return the report as one self-contained page, and write it to `path` if given.

        `rows=False` leaves out the values of rows. `card` holds facts about model and data, such as
        ``{"model": "ResNet-50", "data": "test split"}``. The rejection window of the page starts at `rule` if given,
        and otherwise with nothing withheld. Needs Jinja2 (`pip install 'calibrant[report]'`).
        """
        from calibrant.report.evaluation.page import render

        page = render(self, rows=rows, title=title, card=card or {}, rule=rule)
        if path is not None:
            write_text_whole(Path(path), page)
        return page

    def plot(self) -> Any:
        """Draw reliability, histogram and risk–coverage of every model; returns the matplotlib figure."""
        from calibrant.plots import ConfidenceHistogramDisplay, ReliabilityDisplay, RiskCoverageDisplay, style

        with style.context() as plt:
            size = (12.5, 4.4 * len(self.samples))
            figure, axes = plt.subplots(len(self.samples), 3, figsize=size, squeeze=False, layout="constrained")
        for (name, sample), row in zip(self.samples.items(), axes, strict=True):
            numbers = self.models[name]
            ReliabilityDisplay.from_predictions(
                **sample.pairs, name=name, ax=row[0], bins=numbers.bins, level=numbers.level, n_resamples=100
            )
            ConfidenceHistogramDisplay.from_predictions(**sample.pairs, ax=row[1])
            # Without weights: the guarantees of this curve count rows.
            pairs: dict[str, Any] = {"confidence": sample.confidence, "correct": sample.correct}
            RiskCoverageDisplay.from_predictions(**pairs, ax=row[2], level=numbers.level)
        return figure


def measure_rows(numbers: ModelNumbers) -> list[list[str]]:
    """The measures as text: a heading, then one row for each."""
    interval = f"{numbers.level:.0%} interval"
    rows = [["", "value", interval, "noise floor"]]
    for key, measure in numbers.measures.items():
        rows.append([measure.name, *_texts(key, measure)])
    return rows


def _texts(key: str, m: Measure) -> list[str]:
    def show(value: float | None) -> str:
        if value is None:
            return "–"
        return f"{100 * value:.2f} %" if key in _POINTS else f"{value:.4f}"

    interval = "–" if m.low is None or m.high is None else f"{show(m.low)} to {show(m.high)}"
    if key in _POINTS and (m.low, m.high) == (0, 1):
        interval = "cannot be told"
    return [show(m.value), interval, "–" if m.floor is None else show(m.floor)]


def group_rows(numbers: ModelNumbers) -> list[list[str]]:
    """The calibration of each group as text: a heading, then one row for each of the largest groups."""
    rows = [["group", "rows", "confidence", "accuracy", "difference, points", f"{numbers.level:.0%} interval"]]
    for group in numbers.groups[:MOST_GROUPS]:
        shares = [f"{100 * group[key]:.1f} %" for key in ("mean_confidence", "frequency")]
        gap, low, high = (points(group[key]) for key in ("gap", "gap_low", "gap_high"))
        rows.append([str(group["name"]), f"{group['n']:,}", *shares, gap, low if low == high else f"{low} to {high}"])
    if more := len(numbers.groups[MOST_GROUPS:]) + numbers.groups_left_out:
        rows.append([f"and {more:,} more", *[""] * 5])
    return rows


def difference_rows(entry: Mapping[str, Any]) -> list[list[str]]:
    """Paired differences as text."""
    rows = []
    for key, label in (("accuracy", "accuracy"), ("nll", "NLL"), ("brier", "Brier score"), ("ece", "ECE")):
        d = entry[key]
        if d["value"] is None:
            rows.append([label, "–", "–", "–"])
        else:
            p = "< 0.001" if d["p_value"] < 0.001 else f"{d['p_value']:.3f}"
            value, low, high = (format_signed(d[end], 4) for end in ("value", "low", "high"))
            rows.append([label, value, f"{low} to {high}", p])
    return rows


def points(difference: float | None) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return format_signed(None if difference is None else 100 * difference)


def _text_table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    return "\n".join(lines)


def _html_table(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows[1:])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def plain(value: Any) -> Any:
    """Replace numbers that JSON cannot represent by None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
