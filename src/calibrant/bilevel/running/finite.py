"""Checks that the values of an outer step are finite, and errors that say what to try if they are not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from calibrant.bilevel.gradients import hypergradients as hg

if TYPE_CHECKING:
    from calibrant.bilevel.running.outer_step import StepOutcome
    from calibrant.bilevel.running.run import Run


class NonFiniteError(FloatingPointError):
    """A loss, hypergradient or parameter is not finite. The message names it and the step, and says what to try."""


_REMEDIES = {
    "training loss": "Try a smaller inner or outer learning rate, or look for inputs that are not finite",
    "inner loss": "Try a smaller inner learning rate, or look for inputs that are not finite",
    "inner parameter vector": "The inner losses are finite, so an update overflowed: try a smaller inner learning rate",
    "outer loss": "Look for validation inputs that are not finite, or for the logarithm of zero in the outer loss",
    "hypergradient": "The losses are finite, so differentiation overflowed: try fewer inner steps, Truncated, a "
    "smaller inner learning rate, or float64",
    "vector of outer variables": "The hypergradient is finite, so the update overflowed: try a smaller outer learning "
    "rate, or clip_norm",
}


def _finite(values: Tensor, members: int) -> Tensor:
    """Whether all values of each member are finite, as one row."""
    if members == 1:
        return values.sum().isfinite().reshape(1, 1)  # one pass: a sum is finite only if its terms are
    return values.reshape(members, -1).isfinite().all(1).reshape(1, members)


def sound(run: Run, result: hg.HypergradientResult) -> Tensor:
    """The members whose values are all finite, so that they may count in the hypergradient of a tied group."""
    members = run.problem.members or 1
    parts = [result.state.params, *result.inner_losses, *(t for t in result[:2] if t is not None)]
    return torch.cat([_finite(part, members) for part in parts]).all(0).cpu()


def examine(run: Run, taken: int, outcome: StepOutcome) -> Tensor:
    """Whether all values of each member are finite. If not, the member fails; a single problem raises an error."""
    step = run.step, taken, run.present.lookahead
    values = Values(run.inner_losses, outcome.result, outcome.phi, outcome.state.params, *step)
    if run.replay is not None:
        run.deferred_finite_check.add(values)
        return torch.ones(1, dtype=torch.bool, device="cpu")
    if not run.is_population:
        if not math.isfinite(sum(t.sum() for t in (*values.vectors(), values.params))):
            values.check()
        return torch.ones(1, dtype=torch.bool, device="cpu")
    finite = values.finite(len(run.active))
    good = torch.cat([ok.all(0, keepdim=True) for ok in finite.values()]).all(0).cpu()
    for member in ((~good) & run.active).nonzero().flatten().tolist():
        run.fail(member, values.message(finite, member))
    return good


class Values(NamedTuple):
    """The values of an outer step that are checked."""

    inner_losses: Tensor
    result: hg.HypergradientResult
    phi: Tensor
    params: Tensor
    step: int
    taken: int
    lookahead: bool

    def vectors(self) -> list[Tensor]:
        """All values that must be finite, as vectors. Parameters are left out: they show errors of earlier steps."""
        result, tensors = self.result, [self.inner_losses, *self.result.inner_losses, self.phi]
        every = (*tensors, result.loss, result.gradient)
        return [t.reshape(-1) for t in every if t is not None and t.numel()]

    def finite(self, members: int, *, last: bool = True) -> dict[str, Tensor]:
        """Which values are finite, with one column per member, in the order of computation: the first is the cause.

        Parameters count only for the ``last`` step, because later steps may have changed them in place.
        """
        losses, result = self.inner_losses.reshape(-1, members).isfinite(), self.result
        params = {"inner parameter vector": _finite(self.params, members)} if last else {}
        outer: dict[str, Tensor] = {}
        if result.loss is not None:
            outer["outer loss"] = result.loss.reshape(1, members).isfinite()
        if result.gradient is not None:
            outer["hypergradient"] = _finite(result.gradient, members)
            outer["vector of outer variables"] = _finite(self.phi, members)
        if not self.lookahead:
            return {"inner loss": losses} | params | outer
        ahead = [loss.reshape(1, members).isfinite() for loss in result.inner_losses]
        return ({"inner loss": torch.cat(ahead)} if ahead else {}) | outer | {"training loss": losses} | params

    def message(self, finite: dict[str, Tensor], member: int) -> str:
        """The first value that was not finite, its step, and what to try."""
        level, ok = next((k, ok) for k, ok in finite.items() if not bool(ok[:, member].all()))
        where = f"outer step {self.step + 1}"
        if level == "inner loss":
            first = int((~ok[:, member]).nonzero()[0])
            where = f"inner step {self.taken + first + 1} ({where})"
        return f"The {level} was not finite at {where}. {_REMEDIES[level]}."

    def check(self, *, last: bool = True) -> None:
        """Raise an error if a value of a single problem is not finite."""
        finite = self.finite(1, last=last)
        if not all(bool(ok.all()) for ok in finite.values()):
            raise NonFiniteError(self.message(finite, 0))


STEPS_TOGETHER = 32
"""The number of outer steps that are checked together."""


class DeferredFiniteCheck:
    """Checks the steps of a single problem on a GPU together, so that it waits for the GPU once in many steps."""

    def __init__(self) -> None:
        self.unread: list[Values] = []

    def add(self, values: Values) -> None:
        """Add the values of a step."""
        self.unread.append(values)
        if len(self.unread) >= STEPS_TOGETHER:
            self.look()

    def look(self) -> None:
        """Raise the error of the first step with values that are not finite, if there is one."""
        unread, self.unread = self.unread, []
        vectors = [vector for values in unread for vector in values.vectors()]
        if unread and not bool(torch.cat([*vectors, unread[-1].params.sum().reshape(1)]).isfinite().all()):
            for values in unread:
                values.check(last=values is unread[-1])
