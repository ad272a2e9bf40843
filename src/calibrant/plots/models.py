"""Several models side by side: confidence histograms above reliability diagrams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrant.metrics.bins import Scheme
from calibrant.plots import style
from calibrant.plots.histogram import ConfidenceHistogramDisplay, prepare_confidence_histogram
from calibrant.plots.reliability import ReliabilityDisplay, legend_handles, prepare_reliability


class ModelsDisplay:
    """One column for each model, histograms on top and reliability diagrams below (Fig. 2, Sanguin et al. 2024).

    All histograms have the same vertical axis.

    Attributes
    ----------
    reliability, histogram : dict
        The displays of each model by name; their `data` are the numbers.
    axes_, figure_ : the axes, shape (2, models), and the figure, after `plot`
    """

    def __init__(
        self, reliability: dict[str, ReliabilityDisplay], histogram: dict[str, ConfidenceHistogramDisplay]
    ) -> None:
        self.reliability = reliability
        self.histogram = histogram

    @classmethod
    def from_predictions(
        cls,
        models: Mapping[str, Mapping[str, Any] | tuple[Any, Any]],
        *,
        bins: int = 15,
        scheme: Scheme = "width",
        figure: Any = None,
    ) -> ModelsDisplay:
        """Compute and draw for several models.

        `models` maps each name to predictions: `(probs, labels)`, or a mapping with the keywords of
        `calibrant.metrics.ece`, for instance `{"confidence": ..., "correct": ...}`.
        """
        if not models:
            raise ValueError("models must be a mapping from names to predictions; got an empty one.")
        reliability, histogram = {}, {}
        for name, predictions in models.items():
            keywords = dict(predictions) if isinstance(predictions, Mapping) else _pair(name, predictions)
            table = prepare_reliability(**keywords, bins=bins, scheme=scheme)
            reliability[name] = ReliabilityDisplay(table)
            histogram[name] = ConfidenceHistogramDisplay(prepare_confidence_histogram(**keywords, bins=20), name=name)
        return cls(reliability, histogram).plot(figure)

    def plot(self, figure: Any = None) -> ModelsDisplay:
        """Draw into an empty `figure` (or subfigure), or into a new one."""
        columns = len(self.reliability)
        with style.context() as plt:
            if figure is None:
                figure = plt.figure(figsize=(style.PANEL * max(columns, 1.3), 5.8), layout="constrained")
            axes = figure.subplots(2, columns, squeeze=False, sharex=True, sharey="row", height_ratios=[1, 1.5])
            for column, name in enumerate(self.reliability):
                self.histogram[name].plot(axes[0, column])
                self.reliability[name].plot(axes[1, column], legend=False)
                axes[0, column].set_xlabel("")
                if column:
                    axes[0, column].set_ylabel("")
                    axes[1, column].set_ylabel("")
            highest = max(display.data.share.max() for display in self.histogram.values())
            axes[0, 0].set_ylim(0, 1.05 * highest)
            handles = legend_handles([display.data for display in self.reliability.values()], band=True)
            figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        self.axes_, self.figure_ = axes, figure
        return self


def _pair(name: str, predictions: Any) -> dict[str, Any]:
    if not (isinstance(predictions, tuple) and len(predictions) == 2):
        raise ValueError(
            f"predictions of {name!r} must be a tuple (probs, labels) or a mapping of keywords such as "
            f"{{'confidence': ..., 'correct': ...}}; got {type(predictions).__name__}."
        )
    return {"probs": predictions[0], "labels": predictions[1]}
