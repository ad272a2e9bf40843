"""The one loop. Plain training, bilevel training, one problem or a thousand: all of it runs here."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from calibrant.bilevel import checkpoint, checks
from calibrant.bilevel import hypergradients as hg
from calibrant.bilevel.optimizers import Optimizer
from calibrant.bilevel.outer_variables import OuterVariable
from calibrant.bilevel.population import Population
from calibrant.bilevel.problem import Bilevel
from calibrant.bilevel.run import Run, outer_step
from calibrant.bilevel.tracing import Compiler
from calibrant.data.batch import as_dtype

if TYPE_CHECKING:
    from calibrant.bilevel.callbacks import Callback

_ROWS, _ENTRIES = 65_536, 2**22
"""How many rows, and how many entries of them, a prediction runs at once."""


@dataclasses.dataclass(frozen=True)
class Solution:
    """What a run ended with. Populations carry a leading axis; ``solution.member(k)`` takes one out."""

    problem: Bilevel | Population
    params: Tensor
    buffers: dict[str, Tensor]
    phi: Tensor
    outer_steps: int
    seconds: float
    reasons: dict[int, str]
    """Why the run, or each member, ended."""
    failures: dict[int, str]
    """The members that failed, and how."""
    compile_seconds: float = 0.0

    def member(self, index: int) -> Solution:
        """One member as a solution of its own problem."""
        if not isinstance(self.problem, Population):
            raise ValueError("This is the solution of a single problem; it has no members.")
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
        """Write the trained parameters and buffers into ``into``, a module like the problem's model."""
        self._one("export")
        return self.problem.view.export(self.params, self.buffers, into)

    def outer_variables(self) -> dict[str, Tensor]:
        """φ by name, as the outer module's parameters hold it; :meth:`outer_quantities` says what it stands for."""
        return self.problem.outer_view.unflatten(self.phi)

    def outer_quantities(self) -> dict[str, Tensor]:
        """What φ stands for, by name and in its own units: sample weights, rates, coefficients.

        ``{"weights": …}`` holds weights in [0, 1] for :class:`SampleWeights` of either form. A module that is no
        :class:`OuterVariable` gives its parameters.
        """
        self._one("outer_quantities")
        if not isinstance(self.problem.variables, OuterVariable):
            return self.outer_variables()
        constants = getattr(self.problem.train, "hyper", {})
        with torch.no_grad():
            return self.problem.outer_view.run(self.phi, lambda outer: outer.quantities(constants))

    def logits(self, inputs: Any, *, rows: int | None = None) -> Tensor:
        """The trained network's logits in evaluation mode, without gradient. Arrays are taken as in ``Bilevel``.

        Many rows are run in pieces of ``rows``, to bound memory; by default as many as have four million entries.
        """
        self._one("logits")
        net = self.problem.view.bind(self.params, self.buffers, train=False)
        return _in_pieces(net.logits, self._converted(inputs), rows)

    def probs(self, inputs: Any, *, rows: int | None = None) -> Tensor:
        """The probability of each class: the softmax of :meth:`logits`."""
        return self.logits(inputs, rows=rows).softmax(-1)

    def classes(self, inputs: Any, *, rows: int | None = None) -> Tensor:
        """The index of the most probable class."""
        return self.logits(inputs, rows=rows).argmax(-1)

    def logits_of_all(self, inputs: Any, *, per_member: bool = False, rows: int | None = None) -> Tensor:
        """All members' logits, ``(members, n, …)``, as :meth:`logits` gives them for each, in one go.

        Parameters
        ----------
        inputs : tensor or array
            ``(n, …)``, the same for all members, or with ``per_member=True`` ``(members, n, …)``.
        rows : int, optional
            How many rows, over all members, to run at once.
        """
        if not isinstance(self.problem, Population):
            raise ValueError("This is the solution of a single problem: use logits.")
        inputs, members = self._converted(inputs), self.problem.members
        if per_member and len(inputs) != members:
            raise ValueError(f"per_member=True needs inputs for each of the {members} members; got {len(inputs)}.")

        def each(params: Tensor, buffers: dict[str, Tensor], piece: Tensor) -> Any:
            return self.problem.view.bind(params, buffers, train=False).logits(piece)

        every = torch.func.vmap(each, in_dims=(0, 0, 0 if per_member else None))
        return _in_pieces(
            lambda piece: every(self.params, self.buffers, piece),
            inputs,
            rows,
            members=members,
            dim=1 if per_member else 0,
            out_dim=1,
        )

    def predict(self, inputs: Any, *, rows: int | None = None) -> Any:
        """The old name of :meth:`logits`."""
        _renamed("predict", "logits")
        return self.logits(inputs, rows=rows)

    def predict_all(self, inputs: Any, *, per_member: bool = False, rows: int | None = None) -> Any:
        """The old name of :meth:`logits_of_all`."""
        _renamed("predict_all", "logits_of_all")
        return self.logits_of_all(inputs, per_member=per_member, rows=rows)

    def _converted(self, inputs: Any) -> Any:
        if isinstance(inputs, np.ndarray):
            inputs = torch.as_tensor(inputs, device=self.params.device)
        return as_dtype(inputs, self.params.dtype)

    def _one(self, what: str) -> None:
        if isinstance(self.problem, Population):
            raise ValueError(f"{what} works on one member: solution.member(k).{what}(…).")


def _in_pieces(
    net: Callable[[Any], Any],
    inputs: Any,
    rows: int | None,
    *,
    members: int = 1,
    dim: int = 0,
    out_dim: int = 0,
) -> Any:
    """``net(inputs)``, with the rows of a tensor along ``dim`` in pieces, and the outputs joined along ``out_dim``."""
    with torch.no_grad():
        if not isinstance(inputs, Tensor):
            return net(inputs)
        if rows is None:
            entries = inputs[(slice(None),) * dim + (slice(0, 1),)].numel()
            rows = min(_ENTRIES // max(entries, 1), _ROWS)
        rows = max(1, rows // (members if dim == 0 else 1))
        if inputs.shape[dim] <= rows:
            return net(inputs)
        pieces = [net(piece) for piece in inputs.split(rows, dim)]
        return pytree.tree_map(lambda *parts: torch.cat(parts, out_dim), *pieces)


def _renamed(old: str, new: str) -> None:
    warnings.warn(f"Solution.{old} is now called {new}; the old name goes with the next version.", FutureWarning, 3)


def solve(
    problem: Bilevel | Population,
    *,
    hypergradient: hg.Hypergradient,
    inner_optimizer: Optimizer,
    outer_optimizer: Optimizer | None = None,
    outer_steps: int | Tensor,
    callbacks: Sequence[Callback] = (),
    restart: bool = False,
    clip_norm: float | None = None,
    compile: Compiler | None = None,
    start: float = 0.0,
    resume: str | Path | None = None,
) -> Solution:
    """Solve a bilevel problem, or train with φ fixed (``hypergradient=Plain(steps)``).

    Parameters
    ----------
    problem : Bilevel or Population
    hypergradient : Hypergradient
        How dF/dφ is computed, and how many training steps belong to one outer step.
    inner_optimizer, outer_optimizer : Optimizer
        ``SGD(lr)`` outside is plain projected descent, as Algorithm 1 (Sanguin et al. 2024) prints it.
    outer_steps : int, or a tensor with one number per member
    callbacks : sequence of Callback
    restart : bool
        Start each outer step from Φ_0(φ) again instead of going on from where training stands.
    clip_norm : float, optional
        Largest norm of the hypergradient (per member).
    compile : {None, "trace", "inductor"}
        None is eager. ``"trace"`` records each kind of step once (about a second) and replays bare tensor operations,
        which pays for small networks; see :mod:`calibrant.bilevel.tracing` for what tracing asks. ``"inductor"`` runs
        the network under ``torch.compile`` and compiles second-order steps (much longer), which pays for large ones.
    start : float
        The share of the run after which φ begins to move; before it the network is trained with φ as it is.
    resume : path, optional
        A checkpoint (:class:`calibrant.bilevel.callbacks.Checkpoint`) of the same run to go on from.
    """
    _check(problem, hypergradient, outer_optimizer, outer_steps, restart)
    _check_optimizers(problem, inner_optimizer, outer_optimizer, clip_norm)
    if not 0 <= start < 1:
        raise ValueError(f"start must be a share of the run, at least 0 and below 1; got {start}.")
    begin = time.perf_counter()
    run = Run(
        problem,
        hypergradient,
        inner_optimizer,
        outer_optimizer,
        outer_steps,
        callbacks=callbacks,
        restart=restart,
        clip_norm=clip_norm,
        compile=compile,
        start=start,
    )
    checks.check_levels(problem, plain=isinstance(hypergradient, hg.Plain), direct=hypergradient.direct)
    if resume is not None:
        checkpoint.load(resume, run)
        if problem.ties is not None and not problem.ties.equal(run.phi):
            raise ValueError(f"{resume} was written by a run whose members were tied otherwise; give the same groups.")
    if isinstance(run.budget, Tensor):
        run.stop("all outer steps done", run.step >= run.budget)
    for callback in run.callbacks:
        callback.on_start(run)
    run.release()
    try:
        while bool(run.active.any()):
            if run.step >= run.outer_steps:
                run.stop("all outer steps done")
                break
            outer_step(run)
            if isinstance(run.budget, Tensor):
                run.stop("all outer steps done", run.step >= run.budget)
            for callback in run.callbacks:
                callback.on_step(run)
        run.look()
    finally:
        for callback in run.callbacks:
            callback.on_end(run)
    levels = (run.dynamics.level, run.outer_level)
    return Solution(
        problem,
        run.state.params,
        run.state.buffers,
        run.phi,
        run.step,
        time.perf_counter() - begin,
        run.reasons,
        run.failures,
        sum(getattr(level, "seconds", 0.0) for level in levels),
    )


def _check(
    problem: Bilevel | Population,
    hypergradient: hg.Hypergradient,
    outer_optimizer: Optimizer | None,
    outer_steps: int | Tensor,
    restart: bool,
) -> None:
    if not isinstance(hypergradient, hg.Hypergradient):
        raise TypeError(f"hypergradient must be a value such as Unrolled(10); got {hypergradient!r}.")
    plain = not hypergradient.moves
    if outer_optimizer is None and not plain:
        raise ValueError("A hypergradient without an outer optimiser moves nothing: give outer_optimizer=SGD(lr), say.")
    if not plain and problem.outer_view.size == 0:
        raise ValueError("There are no outer variables to move: give Bilevel(..., outer=...), or use Plain(steps).")
    if not plain and problem.val is None:
        raise ValueError("The outer level needs validation data: Bilevel(..., val=(inputs, targets)).")
    if problem.moves_start and not restart and not plain:
        raise ValueError(
            "The starting point is an outer variable, so each outer step must start from it: restart=True."
        )
    if problem.moves_start and not plain and not hypergradient.sees_start:
        raise ValueError(
            f"{hypergradient!r} does not differentiate through the starting point, so that the outer variable would "
            "never move: use Unrolled or Forward."
        )
    if isinstance(outer_steps, Tensor):
        if outer_steps.shape != (problem.members,):
            raise ValueError(f"outer_steps must be a number, or one per member; got shape {tuple(outer_steps.shape)}.")
    elif outer_steps < 0:
        raise ValueError(f"outer_steps must not be negative; got {outer_steps}.")


def _check_optimizers(
    problem: Bilevel | Population, inner: Optimizer, outer: Optimizer | None, clip_norm: float | None
) -> None:
    for level, optimizer in (("inner", inner), ("outer", outer)):
        if optimizer is None:
            continue
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"The {level} optimiser must be a value such as calibrant.bilevel.Adam(1e-2), whose update can be "
                f"differentiated; got {type(optimizer).__module__}.{type(optimizer).__name__}."
            )
        lr = optimizer.lr(1) if callable(optimizer.lr) else optimizer.lr
        if isinstance(lr, Tensor) and lr.dim() > 0 and lr.shape != (problem.members,):
            raise ValueError(
                f"The {level} learning rate must be a number, or one per member of a population "
                f"({problem.members or 'this is a single problem'}); got shape {tuple(lr.shape)}."
            )
        if level == "outer" and problem.ties is not None:
            rates = [lr, *(part.lr for _, part in getattr(optimizer, "parts", ()))]
            if not all(problem.ties.equal(r) for r in rates if isinstance(r, Tensor) and r.dim() > 0):
                raise ValueError("Tied members share one φ, so the outer learning rate must be the same in each group.")
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(f"clip_norm must be positive, or None for no clipping; got {clip_norm}.")
