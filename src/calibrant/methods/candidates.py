"""The two candidates of :class:`calibrant.methods.SelfCalibrated`, and the choice between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.bilevel import L2, Adam, Bilevel, Callback, LabelNoise, OuterVariables, Truncated, cosine
from calibrant.methods.adapter import Compile, Group, Solving, solve_group
from calibrant.methods.base import Method, failure
from calibrant.methods.calibrated_mean import held_out_losses, last_step
from calibrant.methods.crossfit import CrossFit, FoldTask, fold_tasks
from calibrant.methods.dealing import deal, folds_of, row_groups
from calibrant.methods.fitted import Mixture
from calibrant.methods.tabular import (
    PlainNetwork,
    TabularNetwork,
    column_strengths,
    on_axes,
    only_projected,
    pooled_part,
    rotated_back,
)
from calibrant.methods.task import Task

if TYPE_CHECKING:
    from calibrant.methods.self_calibrated import SelfCalibrated
NARROW = 256
"""With more columns than this, the shortest training is enough."""
MANY_CLASSES = 100
FEW_CASES = 50
"""With more classes than ``MANY_CLASSES``, or fewer rows than ``FEW_CASES`` outside the largest class, mini-batch
training is as short as full-batch training."""
CELLS = 100_000
SHORT = 2
"""The hypergradient goes through at most this many steps if a step is costly (:func:`costly`)."""


@dataclass(frozen=True)
class Pooled(Method):
    """The pooled candidate: each repeat holds out every label once, and φ is an L2 strength per layer and column."""

    given: SelfCalibrated

    tied: ClassVar[bool] = True

    def parts(self, task: Task) -> Sequence[Task]:
        own, val = self.given, None if task.val is None else slice(len(task.train), None)
        pooled = pooled_part(task)
        if own.refit:
            dealt = folds_of(task, pooled, own.folds, own.repeats, own.choose)
            return own.share_of(fold_tasks(task, pooled, dealt), task)
        task.need_val("SelfCalibrated(refit=False)")
        return fold_tasks(
            task, pooled, deal(pooled.labels, 1, seed=task.seed, held_from=val, groups=row_groups(pooled))
        )

    def network(self, task: Task) -> nn.Module:
        return self.given.network(task)

    def data(self, task: Task) -> dict[str, Any]:
        assert isinstance(task, FoldTask)
        return task.streams(self.given.rows_of_step(len(task.train)))

    def strengths(self, model: nn.Module, task: Task) -> L2:
        """The L2 strengths, which are learned from held-out labels."""
        if not isinstance(task.model, TabularNetwork):
            return L2(model)
        groups = task.train.groups
        return column_strengths(model, len(task.train), None if groups is None else len(groups.unique()))

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        return Bilevel(model, self.strengths(model, task), **self.data(task), seed=task.seed)

    def solving(self, group: Group) -> Solving:
        task = group.tasks[0]
        narrow = isinstance(task.train.inputs, Tensor) and task.train.inputs[0].numel() <= NARROW
        along_axes = type(task.model) is PlainNetwork
        longer = self.given.embedding is not None and group.problems[0].train.batches > 1 and narrow and not along_axes
        fewest = 800 if longer and not soon_learned(task) else 400
        return self._solving(group, group.steps(lambda m: m.given.epochs, fewest, 40))

    def _solving(self, group: Group, steps: list[int]) -> Solving:
        own, rate = self.given, group.each(lambda m, _: m.given.learning_rate)
        total = steps[0] + own.steps
        return Solving(
            hypergradient=Truncated(own.steps, min(own.last, own.steps, SHORT if costly(group.tasks[0]) else own.last)),
            inner_optimizer=Adam(cosine(rate, total, final=0.05 * rate) if own.decay else rate),
            outer_optimizer=Adam(own.outer_learning_rate),
            steps=steps,
            compile="trace" if isinstance(group.tasks[0].model, PlainNetwork) else "auto",
        )


def soon_learned(task: Task) -> bool:
    """Whether a table needs few steps: it has many classes, or nearly all of its rows are of one class."""
    counts = task.train.labels.bincount()
    return task.n_classes > MANY_CLASSES or bool(counts.sum() - counts.max() < FEW_CASES)


def costly(task: Task) -> bool:
    """Whether a network for a table takes long for a step: with many classes, or with wide rows.

    Rows are wide if their columns are principal axes, or more than half as many as there are rows. Tables of at most
    ``CELLS`` cells (rows × columns) are never costly.
    """
    inputs = task.train.inputs
    if not (
        isinstance(inputs, Tensor)
        and inputs.dim() == 2
        and (task.model is None or isinstance(task.model, PlainNetwork))
    ):
        return False
    columns, rows = inputs.shape[1], len(task.train) if task.val is None else len(task.train) + len(task.val)
    wide = rows * columns > CELLS and (type(task.model) is PlainNetwork or rows < 2 * columns)
    return wide or task.n_classes > MANY_CLASSES


@dataclass(frozen=True)
class LabelNoisy(Pooled):
    """The label-noise candidate: only validation labels are held out and trusted, and φ includes a rate of flips."""

    def parts(self, task: Task) -> Sequence[Task]:
        assert task.val is not None
        own, val = self.given, slice(len(task.train), None)
        pooled = task.train + task.val
        trusted = torch.arange(len(pooled), device=pooled.labels.device) >= len(task.train)
        dealt = deal(
            pooled.labels,
            own.folds,
            seed=task.seed,
            repeats=own.repeats,
            held_from=val,
            choose=own.choose,
            choose_from=val,
            groups=row_groups(pooled),
        )
        return own.share_of(fold_tasks(task, pooled, dealt, {"trusted": trusted}), task)

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        outer = OuterVariables(self.strengths(model, task), LabelNoise(task.n_classes))
        return Bilevel(model, outer, **self.data(task), seed=task.seed)

    def solving(self, group: Group) -> Solving:
        steps = group.steps(lambda m: None if m.given.epochs is None else 3 * m.given.epochs, 1200, 40)
        return self._solving(group, steps)


def cross_fits(
    methods: Sequence[Pooled], tasks: Sequence[Task], callbacks: Sequence[Callback], compile: Compile
) -> list[CrossFit]:
    """Cross-fit the networks of each task. Depending on the repeat, the networks embed the columns or do not."""
    axes = [methods[0].given.axes(task) for task in tasks]
    given = methods[0].given
    shown = [
        on_axes(task, own, given.hidden, given.activation) if own is not None or only_projected(task) else task
        for task, own in zip(tasks, axes, strict=True)
    ]
    found: list[list[CrossFit]] = [[] for _ in tasks]
    plain: list[int] = []
    alike: dict[Any, list[tuple[int, Task]]] = {}
    for k, (method, task) in enumerate(zip(methods, shown, strict=True)):
        if (network := method.given.tabular(task)) is not None:
            alike.setdefault(network.kind, []).append((k, replace(task, model=network)))
        if network is None or method.given.deals > 1:
            plain.append(k)
    for same in alike.values():  # networks with the same kind of embedding run as one population
        each = solve_group([methods[k] for k, _ in same], [task for _, task in same], callbacks, compile)
        for (k, _), outcomes in zip(same, each, strict=True):
            found[k].append(CrossFit.of(outcomes))
    if plain:
        each = solve_group([methods[k] for k in plain], [shown[k] for k in plain], callbacks, compile)
        for k, outcomes in zip(plain, each, strict=True):
            found[k].append(CrossFit.of(outcomes))
    return [
        weighed([own if turn is None else rotated_back(own, turn, pooled_part(task)) for own in fits])
        for fits, turn, task in zip(found, axes, tasks, strict=True)
    ]


def weighed(fits: Sequence[CrossFit]) -> CrossFit:
    """Combine two kinds of networks. The second has the share 1/4, 1/2 or 3/4 with the lowest held-out loss.

    A kind is left out only if one of its networks diverged. A mean of both is rarely worse than the better kind, and
    with few labels it is uncertain which kind is better.
    """
    sound = [fit for fit in fits if failure(*fit.heads) is None]
    if len(sound) < 2:
        return (sound or fits)[0]
    first, second = fits
    rows = torch.cat([fit.rows("judge") for fit in fits]).unique()
    pair = [fit.held_out_logits[rows] for fit in fits]
    known = ~torch.cat(pair, 1).isnan().any(1)
    mixed = {share: torch.lerp(pair[0][known], pair[1][known], share) for share in (0.5, 0.25, 0.75)}
    share = min(mixed, key=lambda share: last_step(mixed[share], first.data, rows[known]).loss)
    shares = (*([1 - share] * len(first.heads)), *([share] * len(second.heads)))
    return CrossFit((*first.heads, *second.heads), (*first.folds, *second.folds), first.data, shares)


def preferable(rival: tuple[CrossFit, Mixture], present: tuple[CrossFit, Mixture], *, least: int = 10) -> bool:
    """Whether a candidate that is supported by evidence may replace the current one.

    The losses are compared on rows that no outer loss used. The answer is no if the candidate's loss is higher by more
    than one standard error, or if there are fewer than ``least`` such rows.
    """
    rows = rival[0].rows("choose")
    rows = rows[torch.isin(rows, present[0].rows("choose"))]
    if len(rows) < least:
        return False
    losses, than = (held_out_losses(fit, mixture, rows) for fit, mixture in (rival, present))
    return not clearly_worse(losses, than)


def clearly_worse(losses: Tensor, than: Tensor) -> bool:
    """Whether paired losses are higher by more than one standard error of their difference."""
    loss = losses - than
    return bool(loss.mean() > loss.std() / len(loss) ** 0.5)
