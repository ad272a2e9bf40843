"""Outer variables on the network's weights: L2 penalties, and the starting point."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.base.settings import check_choice
from calibrant.bilevel.variables.base import OuterVariable
from calibrant.data.streams.batch import Tensors
from calibrant.models.functional.functional_module import FunctionalModule


class L2(OuterVariable):
    """L2 penalties ``½ Σ_k exp(φ_k)·‖W_k‖²`` with one coefficient per layer, per unit, or for the whole model.

    They apply to weight matrices and kernels, not to biases and normalisation scales.

    Parameters
    ----------
    model : nn.Module
        The network whose weights are penalised.
    per : {"layer", "unit", "model"}
        ``"unit"`` gives each output unit (row) its own coefficient, as in unit-wise meta-calibration (Bohdal et al.
        2021).
    initial : float
        The first value of the coefficients.
    only : str, optional
        The name of the submodule whose weights are penalised, such as the head ``"fc"``. None means the whole model.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        per: Literal["layer", "unit", "model"] = "layer",
        initial: float = 1e-4,
        only: str | None = None,
    ) -> None:
        super().__init__()
        check_choice("per", per, ("layer", "unit", "model"))
        if initial <= 0:
            raise ValueError(f"initial must be positive; got {initial}.")
        self.per = per
        inside = model if only is None else model.get_submodule(only)
        prefix = f"{only}." if only else ""
        shapes = {prefix + k: p.shape for k, p in inside.named_parameters() if p.requires_grad and p.dim() > 1}
        if only is not None and not shapes:
            raise ValueError(f"only must name a submodule with trainable weights; got {only!r}, which has none.")
        self.names = list(shapes)
        sizes = {"layer": [1] * len(shapes), "unit": [s[0] for s in shapes.values()], "model": [1]}[per]
        self.sizes = sizes
        self.log = nn.Parameter(torch.full((sum(sizes),), math.log(initial), device="cpu"))

    def coefficients(self) -> Tensor:
        """The coefficients exp(φ_k), in the order of the layers."""
        return self.log.exp()

    def quantities(self, hyper: Tensors) -> Tensors:
        return {"coefficients": self.coefficients()}

    def penalty(self, params: Tensors) -> Tensor | float:
        strengths = self.coefficients()
        if self.per == "model":
            return 0.5 * strengths.sum() * sum(params[k].square().sum() for k in self.names)
        total: Tensor | float = 0.0
        for name, strength in zip(self.names, strengths.split(self.sizes), strict=True):
            rows = params[name].square().flatten(1).sum(1)
            total = total + 0.5 * (strength * rows).sum()
        return total


class ColumnL2(L2):
    """L2 penalties per layer, with an additional factor per column in layers that read the columns of a table::

        ½ Σ_k exp(φ_k)·Σ_j exp(ρ_{k,g(j)})·‖W_k[:, j]‖²

    This is automatic relevance determination (MacKay 1994; Neal 1996): it switches off columns that do not help. There
    are as many factors as columns, so the outer loss has a term ``shrink·Σρ²`` that pulls ρ to zero.

    Parameters
    ----------
    model : nn.Module
        The network whose weights are penalised.
    columns : mapping from names of weight matrices to integer tensors
        The group g(j) of each input j of the matrix, counted from 0. A group shares one factor.
    initial : float, or mapping from names of weight matrices to floats
        The first coefficients of the layers. A mapping must have an entry for every matrix.
    shrink : float
        The strength of the pull of ρ to zero.
    """

    def __init__(
        self,
        model: nn.Module,
        columns: Mapping[str, Tensor],
        *,
        initial: float | Mapping[str, float] = 1e-4,
        shrink: float = 0.0,
    ) -> None:
        super().__init__(model)
        if unknown := sorted(set(columns) - set(self.names)):
            raise ValueError(
                f"columns must name weight matrices of the model; got {', '.join(unknown)}, which it does not have."
            )
        if shrink < 0:
            raise ValueError(f"shrink must be at least 0; got {shrink}.")
        starts = initial if isinstance(initial, Mapping) else dict.fromkeys(self.names, initial)
        self.log = nn.Parameter(torch.tensor([math.log(starts[name]) for name in self.names], device="cpu"))
        self.shrink, self.grouped = shrink, list(columns)
        self.relative = nn.ParameterList(torch.zeros(int(own.max()) + 1, device="cpu") for own in columns.values())
        for position, own in enumerate(columns.values()):
            self.register_buffer(f"group{position}", own.clone())

    def penalty(self, params: Tensors) -> Tensor | float:
        total: Tensor | float = 0.0
        for name, strength in zip(self.names, self.coefficients(), strict=True):
            squares = params[name].square()
            if name in self.grouped:
                position = self.grouped.index(name)
                factors = self.relative[position].exp()
                squares = squares.sum(0) * factors.index_select(0, self.get_buffer(f"group{position}"))
            total = total + 0.5 * strength * squares.sum()
        return total

    def prior(self) -> Tensor | float:
        return self.shrink * sum(own.square().sum() for own in self.relative)


class InitialPoint(OuterVariable):
    """A learned starting point, ``θ_0 = φ`` (Φ_0 of Eq. (6) of the first paper). Use it with ``restart=True``."""

    moves_start = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.point = nn.Parameter(FunctionalModule(model).initial())

    def initial(self, params: Tensor) -> Tensor:
        return self.point
