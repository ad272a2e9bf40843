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


class Look(NamedTuple):
    """Which values of an outer step are finite, in the order of computation, with one column per member."""

    finite_by_value: dict[str, Tensor]
    step: int
    taken: int

    def message(self, member: int) -> str:
        """The first value that was not finite, its step, and what to try."""
        level, ok = next((k, ok) for k, ok in self.finite_by_value.items() if not bool(ok[:, member].all()))
        where = f"outer step {self.step + 1}"
        if level == "inner loss":
            first = int((~ok[:, member]).nonzero()[0])
            where = f"inner step {self.taken + first + 1} ({where})"
        return f"The {level} was not finite at {where}. {_REMEDIES[level]}."


def examine(run: Run, taken: int, outcome: StepOutcome) -> Tensor:
    """Whether all values of each member are finite. If not, the member fails; a single problem raises an error."""
    values = Values(
        run.inner_losses, outcome.result, outcome.phi, outcome.state.params, run.step, taken, run.present.lookahead
    )
    if run.replay is not None:
        run.deferred_finite_check.add(values)
        return torch.ones(1, dtype=torch.bool, device="cpu")
    if not run.is_population and values.surely_finite():
        return torch.ones(1, dtype=torch.bool, device="cpu")
    look = values.look(run.problem.members or 1)
    good = torch.cat([ok.all(0, keepdim=True) for ok in look.finite_by_value.values()]).cpu()
    for member in ((~good.all(0)) & run.active).nonzero().flatten().tolist():
        if not run.is_population:
            raise NonFiniteError(look.message(member))
        run.fail(member, look.message(member))
    return good.all(0)


class Values(NamedTuple):
    """The values of an outer step that are checked."""

    inner_losses: Tensor
    result: hg.HypergradientResult
    phi: Tensor
    params: Tensor
    step: int
    taken: int
    lookahead: bool

    def look(self, members: int) -> Look:
        """Check which values are finite."""
        losses, result = self.inner_losses.reshape(-1, members).isfinite(), self.result
        params = {"inner parameter vector": _finite(self.params, members)}
        outer: dict[str, Tensor] = {}
        if result.loss is not None:
            outer["outer loss"] = result.loss.reshape(1, members).isfinite()
        if result.gradient is not None:
            outer["hypergradient"] = _finite(result.gradient, members)
            outer["vector of outer variables"] = _finite(self.phi, members)
        # In the order of computation, so that the message names the first cause.
        if not self.lookahead:
            return Look({"inner loss": losses} | params | outer, self.step, self.taken)
        lookahead_losses: dict[str, Tensor] = {}
        if result.inner_losses:
            lookahead_losses["inner loss"] = torch.stack(result.inner_losses).reshape(-1, members).isfinite()
        return Look(lookahead_losses | outer | {"training loss": losses} | params, self.step, self.taken)

    def surely_finite(self) -> bool:
        """Whether the sum of all values is finite, so that every value is."""
        return math.isfinite(sum(t.sum() for t in (*self.all_finite(), self.params)))

    def all_finite(self) -> list[Tensor]:
        """All values that must be finite, as vectors. Parameters are left out: they show errors of earlier steps."""
        result, tensors = self.result, [self.inner_losses, *self.result.inner_losses, self.phi]
        every = (*tensors, result.loss, result.gradient)
        return [t.reshape(-1) for t in every if t is not None and t.numel()]


STEPS_TOGETHER = 32
"""The number of outer steps that are checked together."""


class DeferredFiniteCheck:
    """Checks the steps of a single problem on a GPU without waiting for them.

    Steps are collected, and one number says whether all of them were finite. It is copied from the GPU while the next
    steps run, and read when those have been collected. :meth:`look` waits and reads everything.
    """

    def __init__(self) -> None:
        self.unread: list[Values] = []
        self._asked: list[Values] = []
        self._answer: Tensor | None = None
        self._arrived: torch.cuda.Event | None = None

    def add(self, values: Values) -> None:
        """Add the values of a step."""
        self.unread.append(values)
        if len(self.unread) >= STEPS_TOGETHER:
            self._read()
            self._ask()

    def look(self) -> None:
        """Raise the error of the first step with values that are not finite, if there is one."""
        self._read()
        if self.unread:
            self._ask()
            self._read()

    def _ask(self) -> None:
        self._asked, self.unread = self.unread, []
        pieces = [piece for values in self._asked for piece in values.all_finite()]
        total = torch.cat([torch.cat(pieces), self._asked[-1].params.sum().reshape(1)])
        answer = total.isfinite().all()
        if answer.is_cuda:
            self._answer = torch.empty((), dtype=torch.bool, device="cpu", pin_memory=True).copy_(
                answer, non_blocking=True
            )
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        else:
            self._answer = answer

    def _read(self) -> None:
        if self._answer is None:
            return
        if self._arrived is not None:
            self._arrived.synchronize()
        good, asked = bool(self._answer), self._asked
        self._answer, self._asked, self._arrived = None, [], None
        for values in [] if good else asked:
            look = values.look(1)
            if not all(bool(ok.all()) for ok in look.finite_by_value.values()):
                raise NonFiniteError(look.message(0))
