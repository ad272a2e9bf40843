"""How networks for tables see rows: embedded columns, an L2 factor for each column, and wide rows along few axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.bilevel import ColumnL2, Solution
from calibrant.methods.crossfit import CrossFit
from calibrant.methods.task import Part, Task
from calibrant.models.embeddings import EmbeddingLayer, Encoding, make_encoding
from calibrant.models.mlp import mlp

EMBEDDINGS = ("piecewise", "periodic", "linear")
PRECISION = 1.0
"""L2 strengths start at this number divided by the number of rows: a Gaussian prior of variance 1 on the weights."""
EMBEDDED_PRECISION = 30.0
"""The same for weights of the embedding, which must earn their place."""
SHRINK = 0.02
"""``shrink`` of :class:`calibrant.bilevel.ColumnL2`, times the number of rows."""
WIDE = 500
"""Networks see at most so many columns or axes."""
LEADING = 128
"""Where there would be more, they see so many principal axes: training takes less time, and loses little."""
MOST_SIDE = 2048
"""Axes are found in time that grows with the cube of the rows or columns, whichever are fewer. Beyond this many there
are none."""


@dataclass(frozen=True)
class PlainNetwork:
    """A factory: perceptrons for the rows of one table, each from its own seed."""

    features: int
    classes: int
    hidden: tuple[int, ...]
    activation: str
    dtype: torch.dtype

    def __call__(self, seed: int) -> nn.Module:
        return self._network(seed)

    def _network(self, seed: int, encoding: Encoding | None = None) -> nn.Module:
        settings: dict[str, Any] = {"hidden": self.hidden, "activation": self.activation, "encoding": encoding}
        return mlp(self.features, self.classes, **settings, seed=seed).to(self.dtype)


@dataclass(frozen=True)
class TabularNetwork(PlainNetwork):
    """The same with embedded columns, and an L2 factor for each column where there are rows enough."""

    encoding: Encoding | None

    def __call__(self, seed: int) -> nn.Module:
        return self._network(seed, self.encoding)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What networks must have in common to be trained as one population."""
        return () if self.encoding is None else (type(self.encoding), *self.encoding.source.tolist())


def tabular_network(
    inputs: Tensor, classes: int, embedding: str, hidden: tuple[int, ...], activation: str
) -> TabularNetwork:
    """Networks for a table with these rows; "linear" embeds nothing."""
    encoding = None if embedding == "linear" else make_encoding(inputs, embedding)  # type: ignore[arg-type]
    return TabularNetwork(inputs.shape[1], classes, hidden, activation, inputs.dtype, encoding)


ROWS_PER_COLUMN = 20
"""With fewer rows, columns have no L2 factors of their own."""


def column_strengths(model: nn.Module, rows: int, groups: int | None = None) -> ColumnL2:
    """The L2 strengths of a :class:`TabularNetwork`'s module that is trained on so many rows.

    Columns have factors of their own where there are ``ROWS_PER_COLUMN`` rows for each. With fewer, so many outer
    variables would learn the held-out labels by heart, and held-out predictions would no longer be those of networks
    that know nothing of them. Where rows belong to ``groups``, each group counts as one row.
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
    """A network that was trained on rotated rows, as a function of the rows themselves.

    All else is the solution's own.
    """

    solution: Solution
    axes: Tensor
    """Inputs times this matrix, (d, r), are what the network was trained on."""

    def __getattr__(self, name: str) -> Any:
        if name in ("solution", "axes") or name.startswith("__"):  # asked for while a copy is being made
            raise AttributeError(name)
        return getattr(self.solution, name)

    def logits(self, inputs: Any) -> Tensor:
        """Logits, (n, C)."""
        return self.solution.logits(torch.as_tensor(inputs).to(self.axes) @ self.axes)


def bare(task: Task) -> bool:
    """Whether a task is rows of numbers and leaves the network to the method."""
    inputs = task.train.inputs
    plain = isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point()
    return plain and task.model is None and task.train.prepare is None


def pooled_part(task: Task) -> Part:
    """Training and validation part as one sample."""
    return task.train if task.val is None else task.train + task.val


def wide_axes(inputs: Tensor) -> Tensor | None:
    """Principal axes of wide rows, (d, r); None for rows that are not wide.

    Rows are wide if there are more than ``WIDE`` columns, or more columns than rows. An L2 penalty keeps weights within
    the span of the rows, so that a network on all axes of n < d rows can be all that one on the columns can, with a
    first layer of n inputs instead of d. Of more than ``WIDE`` axes the ``LEADING`` ones are kept. The axes are scaled
    so that coordinates have a mean square of 1 on average.
    """
    count, columns = inputs.shape
    if (count >= columns and columns <= WIDE) or min(count, columns) > MOST_SIDE:
        return None
    if count < columns:
        products = inputs.double() @ inputs.double().T
    else:  # piece by piece: a table of many rows need not fit into memory twice
        products = sum(piece.double().T @ piece.double() for piece in inputs.split(65_536))
    values, vectors = torch.linalg.eigh(products)
    kept = values > 1e-10 * values[-1]
    if kept.sum() > WIDE:
        kept[:-LEADING] = False
    if not kept.any():
        return None
    values, vectors = values[kept], vectors[:, kept]
    axes = inputs.double().T @ (vectors / values.sqrt()) if count < columns else vectors
    return (axes * (count * len(values) / values.sum()).sqrt()).to(inputs)


def rotated(task: Task, axes: Tensor, hidden: tuple[int, ...], activation: str) -> Task:
    """The task with inputs along the axes, and plain perceptrons for them: axes have no meaning to embed."""

    def turn(part: Part | None) -> Part | None:
        return None if part is None else replace(part, inputs=part.inputs @ axes)

    train = turn(task.train)
    assert train is not None
    model = PlainNetwork(axes.shape[1], task.classes, hidden, activation, axes.dtype)
    return replace(task, train=train, val=turn(task.val), model=model)


def rotated_back(fit: CrossFit, axes: Tensor, data: Part) -> CrossFit:
    """What cross-fitting on rotated rows gave, as networks on the rows themselves."""
    heads: Sequence[Any] = [Rotated(head, axes) for head in fit.heads]
    return replace(fit, heads=tuple(heads), data=data)
