"""The result of a run: trained parameters, φ, and predictions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.base.words import count, duration
from calibrant.bilevel.problem.bilevel import Bilevel
from calibrant.bilevel.problem.population import Population
from calibrant.bilevel.variables.base import OuterVariable
from calibrant.data.streams.batch import as_dtype, map_tensors

_ROWS, _ENTRIES = 65_536, 2**22
"""The largest number of rows, and of entries in them, that a prediction runs at once."""


@dataclasses.dataclass(frozen=True)
class Solution:
    """The result of :func:`solve`. For a population, tensors have a leading axis; ``member(k)`` gives one member.

    ``params`` holds the trained parameters and ``phi`` the outer variables, each as one flat vector.
    """

    problem: Bilevel | Population
    params: Tensor
    buffers: dict[str, Tensor]
    phi: Tensor
    outer_steps: int
    seconds: float
    reasons: dict[int, str]
    """Why the run, or each member of a population, ended."""
    failures: dict[int, str]
    """The error message of each member that failed."""
    compile_seconds: float = 0.0

    def __repr__(self) -> str:
        kind = f"{len(self.params)} members, each with " if isinstance(self.problem, Population) else ""
        failed = f", {len(self.failures)} failed" if self.failures else ""
        parameters, outer = count(self.params.shape[-1], "parameter"), count(self.phi.shape[-1], "outer variable")
        return (
            f"Solution({kind}{parameters} and {outer}{failed}; "
            f"{count(self.outer_steps, 'outer step')} in {duration(self.seconds)})"
        )

    def member(self, index: int) -> Solution:
        """The solution of one member's problem."""
        if not isinstance(self.problem, Population):
            raise ValueError("member(k) needs the solution of a Population; got that of a single problem.")
        return dataclasses.replace(
            self,
            problem=self.problem.problems[index],
            params=self.params[index],
            buffers={k: b[index] for k, b in self.buffers.items()},
            phi=self.phi[index],
            reasons={0: self.reasons[index]} if index in self.reasons else {},
            failures={0: self.failures[index]} if index in self.failures else {},
        )

    def export(self, into: nn.Module) -> nn.Module:
        """Write the trained parameters and buffers into ``into``, a module with the architecture of the model."""
        self._one("export")
        return self.problem.view.export(self.params, self.buffers, into)

    def outer_variables(self) -> dict[str, Tensor]:
        """The outer module's parameters by name. :meth:`outer_quantities` gives them in meaningful units."""
        return self.problem.outer_view.unflatten(self.phi)

    def outer_quantities(self) -> dict[str, Tensor]:
        """The quantities that φ represents, by name: sample weights, rates, coefficients.

        For :class:`SampleWeights` this is ``{"weights": …}`` with weights in [0, 1], whatever its form. A module that
        is not an :class:`OuterVariable` gives its parameters.
        """
        self._one("outer_quantities")
        if not isinstance(self.problem.variables, OuterVariable):
            return self.outer_variables()
        constants = getattr(self.problem.train, "hyper", {})
        with torch.no_grad():
            return self.problem.outer_view.run(self.phi, lambda outer: outer.quantities(constants))

    def logits(self, inputs: Any, *, rows: int | None = None) -> Tensor:
        """The trained network's logits in evaluation mode, without gradient.

        Rows are run in pieces of ``rows`` to bound memory. By default a piece has at most four million entries.
        """
        self._one("logits")
        net, inputs = self.problem.view.bind(self.params, self.buffers, train=False), self._converted(inputs)
        with torch.no_grad():
            if not isinstance(inputs, Tensor):
                return net.logits(inputs)
            if rows is None:
                rows = min(_ENTRIES // max(inputs[:1].numel(), 1), _ROWS)
            pieces = [net.logits(piece) for piece in inputs.split(max(1, rows))]
            return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def probs(self, inputs: Any, *, rows: int | None = None) -> Tensor:
        """The probability of each class: the softmax of :meth:`logits`."""
        return self.logits(inputs, rows=rows).softmax(-1)

    def classes(self, inputs: Any, *, rows: int | None = None) -> Tensor:
        """The index of the most probable class."""
        return self.logits(inputs, rows=rows).argmax(-1)

    def _converted(self, inputs: Any) -> Any:
        """The inputs on the device and in the precision of the network, as in training."""
        inputs = torch.as_tensor(inputs, device=self.params.device) if isinstance(inputs, np.ndarray) else inputs
        return as_dtype(map_tensors(lambda t: t.to(self.params.device), inputs), self.params.dtype)

    def _one(self, what: str) -> None:
        if isinstance(self.problem, Population):
            raise ValueError(f"{what} needs a single problem; got a population. Use solution.member(k).{what}(…).")
