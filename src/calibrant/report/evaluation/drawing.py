"""The figures of an evaluation, drawn with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from calibrant.plots import ConfidenceHistogramDisplay, ReliabilityDisplay, RiskCoverageDisplay, style

if TYPE_CHECKING:
    from calibrant.report.evaluation.result import Evaluation


def draw(evaluation: Evaluation) -> Any:
    """One row per model: reliability diagram, confidence histogram, risk against coverage."""
    with style.context() as plt:
        size = (12.5, 4.4 * len(evaluation.samples))
        figure, axes = plt.subplots(len(evaluation.samples), 3, figsize=size, squeeze=False, layout="constrained")
    for (name, sample), row in zip(evaluation.samples.items(), axes, strict=True):
        numbers = evaluation.models[name]
        ReliabilityDisplay.from_predictions(
            **sample.pairs, name=name, ax=row[0], bins=numbers.bins, level=numbers.level, n_resamples=100
        )
        ConfidenceHistogramDisplay.from_predictions(**sample.pairs, ax=row[1])
        # Without weights: the guarantees of this curve count rows.
        pairs: dict[str, Any] = {"confidence": sample.confidence, "correct": sample.correct}
        RiskCoverageDisplay.from_predictions(**pairs, ax=row[2], level=numbers.level)
    return figure
