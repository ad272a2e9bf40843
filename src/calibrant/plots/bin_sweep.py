"""ECE and MCE against the number of bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, Unpack

import numpy as np

from calibrant.metrics import ece, mce, noise_floor
from calibrant.metrics.bins import Scheme
from calibrant.metrics.predictions import InputKeywords, read
from calibrant.plots import style
from calibrant.plots.display import Display

# The numbers of bins in Fig. 5 of the second paper (γ-Net, SECE).
BINS = (10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class BinSweep:
    """ECE and MCE for each number of bins, and their noise floors (NaN if not computed)."""

    bins: np.ndarray
    ece: np.ndarray
    mce: np.ndarray
    ece_floor: np.ndarray
    mce_floor: np.ndarray


def prepare_bin_sweep(
    probs: Any = None,
    labels: Any = None,
    *,
    bins: Sequence[int] = BINS,
    scheme: Scheme = "width",
    n_resamples: int = 50,
    **keywords: Unpack[InputKeywords],
) -> BinSweep:
    """Compute ECE and MCE for each number of bins; predictions are given as for `calibrant.metrics.ece`.

    Both errors grow with the number of bins by noise alone. The floors show how much: they are means over `n_resamples`
    draws of a calibrated model with the same confidences. `n_resamples=0` leaves them out.
    """
    if len(bins) == 0:
        raise ValueError("bins must hold at least one number, such as (10, 100, 1000); got none.")
    p = read(probs, labels, **keywords)
    pairs: dict[str, Any] = {"confidence": p.confidence, "sample_weight": p.weight}

    def floor(metric: Any, m: int) -> float:
        if n_resamples == 0:
            return np.nan
        return noise_floor(metric=metric, **pairs, bins=m, scheme=scheme, n_resamples=n_resamples).mean

    values = [[float(f(**pairs, correct=p.correct, bins=m, scheme=scheme)) for m in bins] for f in (ece, mce)]
    floors = [[floor(f, m) for m in bins] for f in (ece, mce)]
    return BinSweep(np.array(bins), *map(np.array, values + floors))


class BinSweepDisplay(Display):
    """ECE (left) and MCE (right) against the number of bins, floors dotted; several models can share the axes.

    As in Fig. 5 of the second paper, with the noise floors added.
    """

    data: BinSweep
    _prepare = staticmethod(prepare_bin_sweep)

    def plot(self, ax: Any = None, *, legend: bool = True) -> Self:
        """Draw into `ax`, a pair of axes for ECE and MCE, or into a new figure; `axes_` is that pair."""
        d = self.data
        with style.context() as plt:
            if ax is None:
                ax = plt.subplots(1, 2, figsize=(7.4, 3.4), layout="constrained")[1]
            if np.size(ax) != 2:
                raise ValueError(f"ax must be a pair of axes, one for ECE and one for MCE; got {np.size(ax)}.")
            pair = tuple(np.ravel(ax))
            panels = (("ECE", d.ece, d.ece_floor), ("MCE", d.mce, d.mce_floor))
            for axis, (title, values, floor) in zip(pair, panels, strict=True):
                look = style.next_look(axis)
                axis.plot(d.bins, values, marker="o", markersize=4, linewidth=1.6, label=self.name, gid="model", **look)
                axis.plot(d.bins, floor, color=look["color"], linewidth=1, linestyle=":", marker="_")
                axis.set_xscale("log")
                axis.set(xlabel="number of bins", title=title)
                axis.set_xticks(d.bins, [f"{m:,}" for m in d.bins])
                axis.minorticks_off()
                axis.grid(axis="y", color=style.PALE, linewidth=0.5)
                tallest = max(np.nanmax(line.get_ydata()) for line in axis.lines if len(line.get_ydata()))
                room = 1.3 if axis is pair[0] else 1.08  # the legend goes to the left
                axis.set_ylim(0, room * tallest if np.isfinite(tallest) and tallest > 0 else 1)
            if legend:
                handles, names = pair[0].get_legend_handles_labels()
                if not np.isnan(d.ece_floor).all():
                    handles.append(plt.Line2D([], [], color=style.GREY, linewidth=1, linestyle=":", marker="_"))
                    names.append("noise floor of each")
                if names:
                    style.add_legend(pair[0], below=False, handles=handles, labels=names)
        self.axes_, self.figure_ = pair, pair[0].figure
        return self
