"""Networks for tables: embedded columns, an L2 factor for each column, projection, and merged copies of rows.

Rows that occur many times, as one row with the weight of all copies. The losses are the same. Trees count the rows of a
leaf, and the networks' steps and penalties depend on the number of rows: for them, copies would look like independent
evidence. Training is faster, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.bilevel import ColumnL2, Solution
from calibrant.data.projection import AXES, leading_axes
from calibrant.methods.core.results import Fitted, network_module
from calibrant.methods.core.samples import Samples
from calibrant.methods.core.task import Task
from calibrant.methods.crossfit.crossfit import CrossFit
from calibrant.methods.crossfit.folds import copies_of
from calibrant.models.architectures.mlp import EmbeddingLayer, PiecewiseLinear, make_encoding, mlp

ColumnEmbedding = Literal["piecewise", "linear"]
PRECISION = 1.0
"""L2 strengths start at this number divided by the number of rows: a Gaussian prior of variance 1 on the weights."""
EMBEDDED_PRECISION = 30.0
"""The same for the weights of the embedding, which start with stronger regularisation."""
SHRINK = 0.02
"""``shrink`` of :class:`calibrant.bilevel.ColumnL2`, times the number of rows."""
WIDE = 500
"""The largest number of columns or axes that networks use."""
MOST_SIDE = 2048
"""Up to this number of rows or columns, whichever is smaller, all axes are computed; the time grows with its cube."""


@dataclass(frozen=True)
class PlainNetwork:
    """A factory of perceptrons for the rows of one table, each initialised with its own seed."""

    features: int
    n_classes: int
    hidden: tuple[int, ...]
    activation: str
    dtype: torch.dtype
    encoding: PiecewiseLinear | None = None

    def __call__(self, seed: int) -> nn.Module:
        settings: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "encoding": self.encoding}
        with torch.device("cpu"):  # the same parameters on all devices, also under torch.set_default_device
            return mlp(self.features, self.n_classes, **settings, seed=seed).to(self.dtype)


@dataclass(frozen=True)
class TabularNetwork(PlainNetwork):
    """A factory of networks with embedded columns, and an L2 factor for each column if there are enough rows."""

    @property
    def kind(self) -> tuple[int, ...] | None:
        """What must be equal for networks to be trained as one population."""
        return None if self.encoding is None else tuple(self.encoding.source.tolist())


def tabular_network(
    part: Samples, n_classes: int, embedding: ColumnEmbedding, hidden: tuple[int, ...], activation: str
) -> TabularNetwork:
    """The factory of networks for a table with these rows; "linear" does not embed the columns.

    Projected columns are not embedded.
    """
    inputs = part.inputs
    columns = inputs[:, : inputs.shape[1] - part.projected]
    encoding = None if embedding == "linear" else make_encoding(columns)
    return TabularNetwork(inputs.shape[1], n_classes, hidden, activation, inputs.dtype, encoding)


ROWS_PER_COLUMN = 20
"""With fewer rows per column, there are no L2 factors per column."""


def column_strengths(model: nn.Module, rows: int, groups: int | None = None) -> ColumnL2:
    """The L2 strengths of a module of :class:`TabularNetwork` that is trained on ``rows`` rows.

    Each column has its own factor if there are at least ``ROWS_PER_COLUMN`` rows per column. With fewer rows, the many
    outer variables would overfit the held-out labels, and held-out predictions would no longer be independent of these
    labels. If rows belong to ``groups``, each group counts as one row.
    """
    first = next(iter(model.children()))
    names = [name for name, p in model.named_parameters() if p.requires_grad and p.dim() > 1]
    initial = dict.fromkeys(names, PRECISION / rows)
    columns = {}
    if isinstance(first, EmbeddingLayer):
        initial["0.embedded.weight"] = EMBEDDED_PRECISION / rows
        columns["0.embedded.weight"] = first.encoding.source.unique(return_inverse=True)[1]
        linear = first.linear
    else:
        assert isinstance(first, nn.Linear)
        linear = first
    name = next(name for name, p in model.named_parameters() if p is linear.weight)
    columns[name] = torch.arange(linear.in_features, device=linear.weight.device)
    if (rows if groups is None else groups) < ROWS_PER_COLUMN * linear.in_features:
        columns = {}
    return ColumnL2(model, columns, initial=initial, shrink=SHRINK / rows)


@dataclass(frozen=True)
class Rotated:
    """A network that was trained on rotated rows, as a function of the original rows.

    All other attributes are those of the solution.
    """

    solution: Solution
    axes: Tensor
    """The matrix, (d, r), that inputs are multiplied by before the network."""

    def __getattr__(self, name: str) -> Any:
        if name in ("solution", "axes") or name.startswith("__"):  # accessed while a copy is made
            raise AttributeError(name)
        return getattr(self.solution, name)

    @property
    def frozen(self) -> nn.Module:
        """The rotation and the network as one module in evaluation mode."""
        turn = nn.Linear(self.axes.shape[0], self.axes.shape[1], bias=False, device=self.axes.device)
        turn.weight.data = self.axes.T.contiguous()
        inner = network_module(self.solution)
        assert inner is not None
        return nn.Sequential(turn, inner).eval()

    def logits(self, inputs: Any) -> Tensor:
        """Logits, (n, C)."""
        return self.solution.logits(torch.as_tensor(inputs, device=self.axes.device).to(self.axes) @ self.axes)


def bare(task: Task) -> bool:
    """Whether a task has rows of numbers and no model."""
    inputs = task.train.inputs
    plain = isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point()
    return plain and task.model is None and task.train.prepare is None


def wide_axes(inputs: Tensor) -> Tensor | None:
    """Principal axes of wide rows, (d, r); None for rows that are not wide.

    Rows are wide if there are more than ``WIDE`` columns, or more columns than rows. An L2 penalty keeps weights within
    the span of the rows. For n < d rows, a network on all axes can therefore represent everything that a network on the
    columns can, with n inputs instead of d. If there are more than ``WIDE`` axes, only the ``AXES`` leading ones are
    kept: training is faster and loses little. The axes are scaled so that coordinates have a mean square of 1 on
    average.
    """
    count, columns = inputs.shape
    if count >= columns and columns <= WIDE:
        return None
    if min(count, columns) > MOST_SIDE:
        squares, vectors = leading_axes(inputs.cpu().numpy())
        return torch.from_numpy(vectors / np.sqrt(squares.mean())).to(inputs)
    if count < columns:
        products = inputs.double() @ inputs.double().T
    else:  # piece by piece, so that a large table is not copied as a whole
        products = sum(piece.double().T @ piece.double() for piece in inputs.split(65_536))
    values, vectors = torch.linalg.eigh(products)
    kept = values > 1e-10 * values[-1]
    if kept.sum() > WIDE:
        kept[:-AXES] = False
    if not kept.any():
        return None
    values, vectors = values[kept], vectors[:, kept]
    axes = inputs.double().T @ (vectors / values.sqrt()) if count < columns else vectors
    return (axes * (count * len(values) / values.sum()).sqrt()).to(inputs)


def only_projected(task: Task) -> bool:
    """Whether a task without a model has no other columns than those of a projection."""
    return bare(task) and task.train.projected == task.train.inputs.shape[1] > 0


def on_axes(task: Task, axes: Tensor | None, hidden: tuple[int, ...], activation: str) -> Task:
    """The task with inputs projected on the axes, and plain perceptrons: embedding axes would not make sense.

    With ``axes=None``, the inputs are a projection already.
    """

    def turn(part: Samples | None) -> Samples | None:
        return part if part is None or axes is None else replace(part, inputs=part.inputs @ axes)

    train = turn(task.train)
    assert train is not None
    model = PlainNetwork(train.inputs.shape[1], task.n_classes, hidden, activation, train.inputs.dtype)
    return replace(task, train=train, val=turn(task.val), model=model)


def rotated_back(fit: CrossFit, axes: Tensor, data: Samples) -> CrossFit:
    """The result of cross-fitting on rotated rows, as networks on the original rows."""
    heads: Sequence[Any] = [Rotated(head, axes) for head in fit.heads]
    return replace(fit, heads=tuple(heads), data=data)


COPIED = 0.25
"""Copies are merged if this share of the rows repeats an earlier row. Fewer copies change little."""


def merged_copies(task: Task) -> tuple[Task, Tensor | None]:
    """The task with one row for all rows of equal inputs and label, and the new position of each row.

    The task stays as it is, and the positions are None, if there are few copies, if rows repeat by chance
    (:func:`calibrant.data.splits.exact_copies.copy_groups`), if the folds or validation rows are given, or if samples
    are not rows of numbers.
    """
    part = task.train
    if part.groups is None or task.val is not None or task.splits is not None or not bare(task):
        return task, None
    if (copies := copies_of(part)) is None:
        return task, None
    codes = copies * task.n_classes + part.labels.cpu().numpy()
    _, first, place = np.unique(codes, return_index=True, return_inverse=True)
    if len(part) - len(first) < COPIED * len(part):
        return task, None
    order = np.argsort(first)  # distinct rows in the order of their first occurrence
    positions = torch.as_tensor(np.argsort(order)[place], device=part.labels.device)
    total = part.weights.new_zeros(len(first)).index_add_(0, positions, part.weights)
    kept = part[torch.as_tensor(first[order], device=part.labels.device)]
    total *= part.weights.mean() / total.mean()  # as many rows as are left, not as there were
    weights = total.to(part.inputs.dtype if part.sample_weight is None else part.sample_weight.dtype)
    assert kept.groups is not None
    groups = None if len(kept.groups.unique()) == len(kept) else kept.groups
    return replace(task, train=replace(kept, sample_weight=weights, groups=groups)), positions.cpu()


def for_all_rows(fitted: Fitted, positions: Tensor) -> Fitted:
    """The result of a merged task, with the values of each row for all of its copies."""
    for name in ("held_out", "suspicion"):
        if name in fitted.extras:
            fitted.extras[name] = fitted.extras[name][positions]
    return fitted
