"""Learned sample weights: one per sample, free or smoothed over neighbours."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from calibrant.base.settings import check_choice
from calibrant.bilevel.variables.base import OuterVariable, of_batch
from calibrant.data.streams.batch import Batch, Tensors


class SampleWeights(OuterVariable):
    """One weight per training sample: ``mean_i w_i·l_i`` (Eq. (10), Sanguin et al. 2024).

    Parameters
    ----------
    samples : int
        The number of training samples.
    form : {"clip", "sigmoid"}
        ``"clip"``: φ is the weights, clipped to [0, 1] after each outer step, as in Fig. 3 of the paper.
        ``"sigmoid"``: ``w = σ(φ)``, which is smooth and never exactly 0 or 1.
    initial_weight : float, optional
        In [0, 1] for ``"clip"`` (default: 1), and in (0, 1) for ``"sigmoid"`` (default: 0.9). The paper does not state
        its w⁰.
    prior_strength : float
        λ of a prior at 1: ``λ/2·mean_i (w_i − 1)²`` is added to the outer loss, so a weight differs from 1 only if
        held-out data support it. The paper has no prior (0). The hypergradient and the gradient of the prior are both
        of order 1/n, so λ does not depend on n.
    """

    needs_index = True

    def __init__(
        self,
        samples: int,
        *,
        form: Literal["clip", "sigmoid"] = "clip",
        initial_weight: float | None = None,
        prior_strength: float = 0.0,
    ) -> None:
        super().__init__()
        check_choice("form", form, ("clip", "sigmoid"))
        weight = (1.0 if form == "clip" else 0.9) if initial_weight is None else initial_weight
        inside = 0 <= weight <= 1 if form == "clip" else 0 < weight < 1
        if not inside:
            allowed = "[0, 1]" if form == "clip" else "(0, 1)"
            raise ValueError(f"initial_weight must be in {allowed} for form={form!r}; got {weight}.")
        if not 0 <= prior_strength < math.inf:
            raise ValueError(f"prior_strength must be at least 0 and finite; got {prior_strength}.")
        self.samples, self.form, self.prior_strength = samples, form, prior_strength
        start = weight if form == "clip" else math.log(weight / (1 - weight))
        self.raw = nn.Parameter(torch.full((samples,), start, device="cpu"))

    def weights(self) -> Tensor:
        """All weights, in the order of the samples."""
        return self.values()

    def values(self) -> Tensor:
        """The free values in [0, 1] from which the weights are computed; here the weights themselves."""
        return self.raw if self.form == "clip" else torch.sigmoid(self.raw)

    def weigh(self, losses: Tensor, batch: Batch) -> Tensor:
        size = len(losses) if losses.dim() else None
        return losses * of_batch(self.weights(), batch, size, "SampleWeights")

    def prior(self) -> Tensor | float:
        if self.prior_strength == 0:
            return 0.0
        return 0.5 * self.prior_strength * (self.values() - 1).square().mean()

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"weights": self.weights()}

    def project(self, values: Tensors) -> Tensors:
        return {k: v.clamp(0.0, 1.0) for k, v in values.items()} if self.form == "clip" else values


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
    scale = x.std(0, unbiased=False)
    z = (x - x.mean(0)) / torch.where(scale > 0, scale, 1.0)
    index = torch.arange(len(x), device="cpu").unsqueeze(1).repeat(1, min(neighbours, len(x)))
    distance = torch.full(index.shape, math.inf, device="cpu")
    for label in y.unique():
        rows = torch.nonzero(y.cpu() == label.cpu()).squeeze(1)
        k = min(index.shape[1], len(rows))
        class_inputs = z[rows].numpy()
        distances, neighbours_in_class = NearestNeighbors(n_neighbors=k).fit(class_inputs).kneighbors(class_inputs)
        index[rows, :k] = rows[torch.from_numpy(neighbours_in_class)]
        distance[rows, :k] = torch.from_numpy(distances).float()
    if width is None:
        nearest = distance[:, 1:2][distance[:, 1:2].isfinite()]
        width = max(0.15 * math.sqrt(x.shape[1] / 2), float(nearest.median()) if len(nearest) else 0.0)
    kernel = torch.softmax(-0.5 * (distance.double() / width).square(), dim=1)
    return {"neighbours": index.to(device), "kernel": kernel.to(device, dtype)}
