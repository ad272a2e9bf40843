"""The result of `evaluate`: numbers and verdicts, with methods to print, plot and write a page."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from calibrant.base.atomic_write import write_text_whole
from calibrant.report.evaluation.numbers import ModelNumbers
from calibrant.report.evaluation.reading import Sample
from calibrant.report.evaluation.rows import difference_rows, group_rows, measure_rows, worst_mistakes
from calibrant.report.evaluation.verdict import CalibrationVerdict, judge
from calibrant.report.numbers import format_number
from calibrant.report.provenance import as_json
from calibrant.selective import RejectionRule


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
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self, *, rows: bool = True, mistakes: int = 25) -> dict[str, Any]:
        """Return everything as plain values for JSON; `rows=False` leaves out the values of rows."""
        row_values = self.rows if rows else None
        models = [
            {
                **numbers.to_dict(),
                "verdict": asdict(self.verdicts[name]),
                "mistakes": worst_mistakes(self.samples[name], row_values, mistakes, self.row_numbers),
            }
            for name, numbers in self.models.items()
        ]
        content: dict[str, Any] = as_json({"models": models, "differences": self.differences})
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


def _text_table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    return "\n".join(lines)
