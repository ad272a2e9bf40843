"""A population: many bilevel problems that run as one, with a leading axis over members.

Groups of population members that share one φ. They serve cross-validated bilevel optimisation: K networks are trained,
each without one fold, and their held-out losses together move one φ. The outer loss of a group is the mean of its
members' outer losses. Its hypergradient is the mean of theirs, because a member's loss depends on φ through its own
network only.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.bilevel.problem.bilevel import NO_VALIDATION_DATA, Bilevel
from calibrant.data.streams.batch import Batch, Tensors
from calibrant.data.streams.population_stream import MemberStream
from calibrant.models.functional.functional_module import FunctionalModule


class SharedPhi:
    """The groups of members that share φ, and the weight of each member in its group.

    Parameters
    ----------
    groups : sequence of int
        One label per member. Members with the same label share φ.
    shares : sequence of positive numbers, optional
        The weight of each member in the mean of its group, such as the size of its fold. By default all are equal.
    """

    def __init__(self, groups: Sequence[int] | Tensor, shares: Sequence[float] | Tensor | None = None) -> None:
        _, self.group = torch.unique(torch.as_tensor(groups, dtype=torch.long, device="cpu"), return_inverse=True)
        member_shares = [1.0] * len(groups) if shares is None else shares
        self.shares = torch.as_tensor(member_shares, dtype=torch.float64, device="cpu")
        if self.shares.shape != self.group.shape:
            raise ValueError(
                f"shares must have one entry per member, as tied has ({len(self.group)}); got shape "
                f"{tuple(self.shares.shape)}."
            )
        if not bool(((self.shares > 0) & self.shares.isfinite()).all()):
            raise ValueError(f"shares must be positive and finite; got {self.shares.tolist()}.")
        # Row g of the table lists the members of group g. Shorter groups are padded with entries that do not count.
        rows = [(self.group == g).nonzero().flatten() for g in range(int(self.group.max()) + 1)]
        self.table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        self.present = torch.nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True).bool()

    def mean(self, values: Tensor, counts: Tensor) -> Tensor:
        """``Σ_k s_k·v_k / Σ_k s_k`` over the members of each group that count, for every member; 0 if none counts.

        It sums over an axis instead of scattering, so the result is bitwise reproducible on every device.
        """
        device = values.device
        weights = (self.shares * counts.cpu())[self.table] * self.present
        weights = (weights / weights.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)).to(values)
        shape = (-1, *[1] * (values.dim() - 1))
        finite = torch.where(counts.to(device).view(shape), values, 0.0)  # 0·NaN would be NaN
        means = (weights.view(*weights.shape, *shape[1:]) * finite[self.table.to(device)]).sum(1)
        return means[self.group.to(device)]

    def any(self, mask: Tensor) -> Tensor:
        """For each member, whether ``mask`` is true for any member of its group."""
        return (mask[self.table] & self.present).any(1)[self.group]

    def equal(self, values: Tensor) -> bool:
        """Whether ``values`` (one row per member) are equal within each group."""
        first = self.table[:, 0][self.group].to(values.device)
        return torch.equal(values, values[first])


class Population:
    """Many problems of one kind that run as one: several seeds, data sets or hyperparameters.

    The losses run under ``vmap``, and everything after them is elementwise over members. Data that all members hold as
    the *same* tensor is not copied. Members must have the same architecture, losses, frozen weights and settings of the
    outer variables. :meth:`Bilevel.replicate` makes such members quickly.

    Parameters
    ----------
    problems : sequence of Bilevel
        The members.
    tied : sequence of int, optional
        One label per member. Members with the same label share one φ, which moves by the mean of the hypergradients of
        those that still run. Clipping and the outer update act on that mean, and :class:`EarlyStopping` stops whole
        groups. If a member fails, the others of its group continue. The group's φ moves while any of its members runs.
    shares : sequence of numbers, optional
        The weight of each member in the mean of its group. By default all weights are equal.
    """

    stochastic = False
    """Whether the inner loss draws random numbers that cannot be passed in; such problems are refused."""

    def __init__(
        self,
        problems: Sequence[Bilevel],
        *,
        tied: Sequence[int] | Tensor | None = None,
        shares: Sequence[float] | Tensor | None = None,
    ) -> None:
        if not problems:
            raise ValueError("problems must hold at least one problem; got none.")
        self.problems = list(problems)
        self.members = len(problems)
        self.template = first = problems[0]
        for position, other in enumerate(problems[1:], 1):
            difference = _difference(first, other)
            if difference:
                raise ValueError(f"Member {position} differs from member 0 in {difference}. Solve them separately.")
        if first.stochastic:
            raise ValueError(
                "The inner loss draws random numbers that cannot be passed in, so members would not equal their single "
                "runs. Use nn.Dropout layers, or draw the augmentation outside the loss."
            )
        self.view, self.outer_view, self.variables = first.view, first.outer_view, first.variables
        self.moves_start, self.detaches = first.moves_start, first.detaches
        self.train = MemberStream([p.train for p in problems], self._draw_masks if self.view.dropouts else None)
        self.val: MemberStream | None = None
        if first.val is not None:
            streams = [p.val for p in problems if p.val is not None]
            self.val = MemberStream(streams, None)
        self.shared_phi = _ties(self, tied, shares)

    def _draw_masks(self, step: int, first: Batch) -> Tensors:
        """The members' dropout masks of a step, equal to those of their single runs."""
        return self.template.masks([p.noise_seed(step) for p in self.problems], first)

    @property
    def axes(self) -> Batch:
        """0 for leaves of a training batch with a leading axis over members, None for leaves that members share."""
        return self.train.axes

    @property
    def outer_axes(self) -> Batch | None:
        """The same for validation batches."""
        return None if self.val is None else self.val.axes

    def each_member(self, level: Literal["inner", "outer"], fn: Callable[..., Any]) -> Callable[..., Any]:
        """``fn`` for every member. Its last argument is a batch of this level; all others have a leading axis."""
        axes = self.axes if level == "inner" else self.outer_axes
        assert axes is not None

        def call(*args: Any) -> Any:
            batch_axes = axes if args[-1].noise else axes._replace(noise={})
            with _vectorised():
                return torch.func.vmap(fn, in_dims=(*[0] * (len(args) - 1), batch_axes))(*args)

        return call

    def inner(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
        """The inner losses, one value per member."""
        return self.each_member("inner", self.template.inner)(params, buffers, phi, batch)

    def outer(self, params: Tensor, buffers: Tensors, phi: Tensor, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outer losses, one value per member."""
        return self.each_member("outer", self.template.outer)(params, buffers, phi, batch)

    def depends(self, level: Literal["inner", "outer"]) -> tuple[bool, bool]:
        """Whether a level's loss depends on θ and on φ. All members have the same losses."""
        return self.template.depends(level)

    def initial_params(self, phi: Tensor) -> Tensor:
        """θ_0 of every member."""
        starts = torch.stack([p.start for p in self.problems])
        if not self.moves_start:
            return starts
        return torch.func.vmap(lambda f, s: self.outer_view.run(f, lambda outer: outer.initial(s)))(phi, starts)

    def initial_buffers(self) -> Tensors:
        """Every member's buffers."""
        return {k: torch.stack([p.start_buffers[k] for p in self.problems]) for k in self.template.start_buffers}

    def initial_phi(self) -> Tensor:
        """Every member's φ."""
        return torch.stack([p.start_phi for p in self.problems])

    def project(self, phi: Tensor) -> Tensor:
        """Every member's φ projected onto its allowed set."""
        return phi if phi.shape[-1] == 0 else torch.func.vmap(self.template.project)(phi)

    def train_batch(self, step: int) -> Batch:
        """The members' batches of an inner step."""
        return self.train.batch(step)

    def val_batch(self, step: int) -> Batch:
        """The members' batches of an outer step."""
        if self.val is None:
            raise ValueError(NO_VALIDATION_DATA)
        return self.val.batch(step)


def why_not_vectorised(problems: Sequence[Bilevel]) -> str | None:
    """Why the first training step of problems cannot be computed as one population; None if it can."""
    few = problems[:2]
    params = torch.stack([p.start for p in few]).requires_grad_()
    try:
        whole = Population(few)
        losses, _ = whole.inner(params, whole.initial_buffers(), whole.initial_phi(), whole.train_batch(0))
        torch.autograd.grad(losses.sum(), params)
    except (RuntimeError, NotImplementedError, ValueError) as error:  # no rule for an operation, control flow on values
        return str(error)
    return None


@contextlib.contextmanager
def _vectorised() -> Iterator[None]:
    """Errors of operations that cannot be vectorised give advice, and transformers can be differentiated.

    Their layers have a fast path without a derivative. They take it in evaluation mode if no tensor requires a
    gradient, and under ``vmap`` none seems to.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast and not torch.is_grad_enabled())
    try:
        yield
    except RuntimeError as error:
        missing = re.search(r"[Bb]atching rule not implemented for (aten::\w+)", str(error))
        if missing:
            raise ValueError(
                f"The members use {missing[1]}, which torch.func.vmap cannot vectorise (recurrent layers such as "
                "nn.LSTM use such operations). Solve the members one by one."
            ) from error
        if "randomness" in str(error):
            raise ValueError(
                "The loss draws random numbers that cannot be passed in, so members would not equal their single "
                "runs. Use nn.Dropout layers, draw augmentation outside the loss, or solve the members one by one."
            ) from error
        if str(error).startswith("vmap:"):
            raise ValueError(
                "A loss, or the network, reads values of tensors, which torch.func.vmap cannot vectorise. Indexing "
                "with a boolean mask, .item() and conditions on tensors do so. Use torch.where, or solve the members "
                "one by one."
            ) from error
        raise
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _ties(
    population: Population, tied: Sequence[int] | Tensor | None, shares: Sequence[float] | Tensor | None
) -> SharedPhi | None:
    if tied is None:
        if shares is not None:
            raise ValueError(
                f"shares must be None without tied, since they weight the members of a tied group; got {shares}."
            )
        return None
    if len(tied) != population.members:
        raise ValueError(f"tied must have one label per member ({population.members}); got {len(tied)}.")
    shared_phi = SharedPhi(tied, shares)
    if not shared_phi.equal(population.initial_phi()):
        raise ValueError(
            "Members of a tied group share one φ, so they must start from equal values of φ; got different ones."
        )
    return shared_phi


def _difference(a: Bilevel, b: Bilevel) -> str | None:
    """The difference that prevents two problems from running as one, in words."""
    if a.inner_loss != b.inner_loss or a.outer_loss != b.outer_loss:
        return "its losses (give all members the same function, and put values that differ into hyper)"
    if (a.val is None) != (b.val is None):
        return "whether there is validation data"
    if a.autocast != b.autocast:
        return "autocast"
    if a.view is b.view and a.outer_view is b.outer_view:
        return None  # replicas of one problem
    if a.view.names != b.view.names or a.view.shapes != b.view.shapes:
        return "the architecture"
    if a.start.dtype != b.start.dtype or a.start.device != b.start.device:
        return "dtype or device"
    if a.outer_view.names != b.outer_view.names or a.outer_view.shapes != b.outer_view.shapes:
        return "the outer variables"
    for mine, others in ((a.view, b.view), (a.outer_view, b.outer_view)):
        if mine.description != others.description:  # all members run the layers of the first one
            return "the settings of its layers"
        if not _equal(_frozen(mine), _frozen(others)):
            return "its frozen parameters"
    # The network's buffers are part of each member's state, but those of the outer module are constants.
    if not _equal(a.outer_view.initial_buffers(), b.outer_view.initial_buffers()):
        return "the buffers of its outer variables"
    return None


def _frozen(view: FunctionalModule) -> Tensors:
    return {k: p for k, p in view.module.named_parameters() if k not in view.names}


def _equal(mine: Tensors, others: Tensors) -> bool:
    return mine.keys() == others.keys() and all(torch.equal(t, others[k]) for k, t in mine.items())
