"""Sample weights smoothed over neighbours of the same label, which leaves fewer variables to over-fit."""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from calibrant.bilevel.outer_variables.base import of_batch
from calibrant.bilevel.outer_variables.sample_weights import SampleWeights
from calibrant.data.batch import Batch, Tensors
from calibrant.data.scaling import standardisation


class SmoothedWeights(SampleWeights):
    """Sample weights smoothed over neighbours of the same label: ``w = S·v``, with v as in :class:`SampleWeights`.

    S is sparse and its rows sum to 1, so the weights stay in [0, 1]. S is a constant of the data, so it is passed in
    ``batch.hyper`` (``"neighbours"`` and ``"kernel"``, each n×k). Members of a population can have different ones::

        Bilevel(model, SmoothedWeights(len(x)), train=(x, y), hyper=neighbourhood(x, y), …)

    The prior acts on v. Because S averages, it also bounds the spread of w.
    """

    def weights(self, hyper: Tensors | None = None) -> Tensor:
        """All weights, in the order of the samples. ``hyper`` holds the neighbourhood of the training data."""
        return self._smoothed(*self._neighbourhood(hyper or {}))

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"weights": self.weights(hyper)}

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        size = len(losses) if losses.dim() else None
        neighbours, kernel = self._neighbourhood(batch.hyper)
        rows = (of_batch(part, batch, size, "SmoothedWeights") for part in (neighbours, kernel))
        return losses * self._smoothed(*rows)

    def _smoothed(self, neighbours: Tensor, kernel: Tensor) -> Tensor:
        values = self.values()
        # The transpose of gather is faster than that of values[neighbours], four times for a population.
        near = torch.gather(values, 0, neighbours.flatten()).view(neighbours.shape)
        return (kernel.to(values.dtype) * near).sum(-1)

    def _neighbourhood(self, hyper: Tensors) -> tuple[Tensor, Tensor]:
        if not {"neighbours", "kernel"} <= set(hyper):
            raise ValueError(
                "SmoothedWeights needs batch.hyper['neighbours'] and ['kernel']. Give "
                "Bilevel(..., hyper=neighbourhood(inputs, labels))."
            )
        neighbours, kernel = hyper["neighbours"], hyper["kernel"]
        if len(neighbours) != len(self.raw):
            raise ValueError(
                f"The neighbourhood must be made for the {len(self.raw)} samples of the weights; got {len(neighbours)} "
                "samples."
            )
        return neighbours, kernel


def neighbourhood(inputs: Any, labels: Any, *, neighbours: int = 32, width: float | None = None) -> Tensors:
    """The rows of S: ``S_ij ∝ exp(−‖x_i − x_j‖²/2h²)`` over the nearest samples j with the label of i, including i.

    Parameters
    ----------
    inputs, labels : arrays or tensors with one row per sample
        The columns of the inputs are standardised here.
    neighbours : int
        The largest number of samples in a row. Memory is n times this number. Classes with fewer samples are padded
        with weight 0.
    width : float, optional
        h. By default the larger of ``0.15·√(d/2)`` in d dimensions (0.15 worked for two-dimensional data) and the
        median distance to the nearest neighbour. In many dimensions all distances are large, and a smaller width would
        smooth nothing.

    Returns
    -------
    dict
        ``neighbours`` (n, k) indices and ``kernel`` (n, k) with rows that sum to 1, for ``Bilevel(hyper=…)``.
    """
    x, y = (v if isinstance(v, Tensor) else torch.as_tensor(v, device="cpu") for v in (inputs, labels))
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1, the sample itself; got {neighbours}.")
    if width is not None and not 0 < width < math.inf:
        raise ValueError(f"width must be positive and finite; got {width}.")
    if len(x) != len(y) or y.dim() != 1:
        raise ValueError(
            f"labels must be one class index for each of the {len(x)} samples; got shape {tuple(y.shape)}."
        )
    device, dtype = x.device, x.dtype if x.is_floating_point() else torch.get_default_dtype()
    x = x.detach().flatten(1).to("cpu", torch.float32)
    scaling = standardisation(x)
    z = (x - scaling["input_mean"]) / scaling["input_scale"]
    index = torch.arange(len(x), device="cpu").unsqueeze(1).repeat(1, min(neighbours, len(x)))
    distance = torch.full(index.shape, math.inf, device="cpu")
    for label in y.unique():
        rows = torch.nonzero(y.cpu() == label.cpu()).squeeze(1)
        k = min(index.shape[1], len(rows))
        own = z[rows].numpy()
        found, which = NearestNeighbors(n_neighbors=k).fit(own).kneighbors(own)
        index[rows, :k], distance[rows, :k] = rows[torch.from_numpy(which)], torch.from_numpy(found).float()
    if width is None:
        nearest = distance[:, 1:2][distance[:, 1:2].isfinite()]
        width = max(0.15 * math.sqrt(x.shape[1] / 2), float(nearest.median()) if len(nearest) else 0.0)
    kernel = torch.softmax(-0.5 * (distance.double() / width).square(), dim=1)
    return {"neighbours": index.to(device), "kernel": kernel.to(device, dtype)}
