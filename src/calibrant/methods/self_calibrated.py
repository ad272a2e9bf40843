"""The recommended method: few, well-placed outer variables, cross-fitted, with one setting for all data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from calibrant.bilevel import L2, Adam, Bilevel, Callback, LabelNoise, OuterVariables, Truncated, cosine
from calibrant.methods.base import Compile, Group, Method, Solving, failure, solve_group
from calibrant.methods.blend import blended, check_members, check_table
from calibrant.methods.bo4sc import read_outer, suspicion
from calibrant.methods.crossfit import CrossFit, FoldTask, deal, fold_tasks, folds_of, grouped, row_groups
from calibrant.methods.fitted import Fitted, Mixture
from calibrant.methods.held_out import LastStep, fit_last_step
from calibrant.methods.tabular import (
    EMBEDDINGS,
    TabularNetwork,
    bare,
    column_strengths,
    pooled_part,
    rotated,
    rotated_back,
    tabular_network,
    wide_axes,
)
from calibrant.methods.task import Part, Task, batch_size
from calibrant.methods.wrong_labels import flip_rate, labels_differ, wrong_label

FULL_BATCH, BATCH = 512, 256
"""Up to ``FULL_BATCH`` rows a step sees all of them, and ``BATCH`` of more."""
WIDE = 256
"""More columns than these need no more than the shortest training."""


@dataclass(frozen=True)
class SelfCalibrated(Method):
    """Cross-fitted networks whose regularisation is learned from held-out loss, and calibrated by held-out labels.

    Two candidates, chosen between without asking:

    * **pooled**: training and validation part are one sample; φ is an L2 strength per layer, and a factor per column.
    * **label noise**, when a validation part is given *and* its labels agree better with the pooled networks than the
      training labels do: only validation samples are held out, their labels are trusted, and φ gains the rate at which
      training labels were flipped (:class:`calibrant.bilevel.LabelNoise`). It replaces the pooled candidate unless its
      loss is higher, by more than a standard error, on validation samples that are in neither one's outer loss.

    In both, networks each leave out one of K folds, dealt twice; their held-out losses together move one φ by
    hypergradients (:mod:`calibrant.methods.crossfit`). The classifier is
    ``(1 − λ)·softmax(mean_k z_k(x)/T + b) + λ/C``, with T, b and λ fitted to the mean logits of the networks that never
    saw a sample (:mod:`calibrant.methods.held_out`). No early stopping; nothing to tune.

    Parameters
    ----------
    hidden, activation : units of the hidden layers, and what is between them; smooth units fit smooth boundaries better
    folds : K
    repeats : how often the folds are dealt. With one, T is fitted to single networks, which need a higher one than
        their mean: it ends under-confident
    epochs : passes over the data, three times as many for the label-noise candidate; None chooses (400 steps of the
        full batch; 800 steps of mini-batches, or 40 epochs where those are more; 1,200 steps or 40 epochs for that
        candidate)
    learning_rate, decay : Adam's, inside; with ``decay`` it falls along half a cosine to a twentieth
    steps : inner steps to one outer step
    last : how many of these the hypergradient goes back through, all of them if there are fewer
    outer_rate : Adam's, outside, on the logarithms of the L2 strengths and the log-odds of the noise rate
    choose : share of each held-out validation fold that is kept for choosing
    members : kinds of classifiers in the log-linear pool (:mod:`calibrant.methods.pool`): "network", and beside it
        "trees" (gradient boosting) and "linear" (logistic regression), cross-fitted on the networks' folds. Networks
        alone need no pool
    refit : True uses all labels as above. False is one network without cross-fitting: the training part trains it, the
        validation part, which must be given, moves φ and fits T, b and λ. There are no folds and no search for label
        noise, so that ``folds``, ``repeats`` and ``choose`` are not used
    batch_size : rows of a step; None is all of them up to 512 and 256 of more, or with ``embedding=None`` all of them
        up to 4,096 and 512 of more
    embedding : "piecewise", "periodic" or "linear": the networks of every second deal, the first one included, embed
        the columns of a table like this (:mod:`calibrant.models.embeddings`; "linear" embeds nothing) and learn an L2
        factor for each column. The others are plain perceptrons. The share of each kind in the mean is chosen by
        held-out labels. None: all networks are plain, with an L2 strength per layer. Tasks that bring their own model
        are not embedded
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: str = "silu"
    folds: int = 5
    repeats: int = 2
    epochs: int | None = None
    learning_rate: float = 0.02
    steps: int = 10
    last: int = 5
    outer_rate: float = 0.2
    choose: float = 1 / 3
    members: tuple[str, ...] = ("network",)
    refit: bool = True
    decay: bool = True
    batch_size: int | None = None
    embedding: str | None = "piecewise"

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate"})

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}.")
        for name in ("repeats", "steps", "last"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not 0 < self.choose < 1:
            raise ValueError(f"choose must be a share between 0 and 1; got {self.choose}.")
        if self.embedding is not None and self.embedding not in EMBEDDINGS:
            known = ", ".join(map(repr, EMBEDDINGS))
            raise ValueError(f"embedding must be one of {known}, or None; got {self.embedding!r}.")
        check_members(self.members)

    @property
    def networks(self) -> int:
        """How many networks one fit trains."""
        return self.folds * self.repeats if self.refit else 1

    def rows_at_once(self, task: Task) -> int:
        pooled = len(task.train) + (len(task.val) if task.val is not None else 0)
        return min(self.last, self.steps) * self.networks * (self.rows_of_step(pooled) or pooled)

    def rows_of_step(self, rows: int) -> int | None:
        """How many rows a step sees; None is all of them."""
        if self.batch_size is None and self.embedding is not None:
            return None if rows <= FULL_BATCH else BATCH
        return batch_size(rows, self.batch_size)

    @property
    def deals(self) -> int:
        """How often folds are dealt."""
        return self.repeats if self.refit else 1

    def embeds(self, task: Task) -> bool:
        """Whether some networks embed the columns of a task: rows of numbers, two for each column, and no given model.

        With fewer rows, as many factors of columns as there are labels would learn these labels by heart.
        """
        if self.embedding is None or not bare(task):
            return False
        rows = len(task.train) + (0 if task.val is None else len(task.val))
        return bool(rows >= 2 * task.train.inputs.shape[1])

    def tabular(self, task: Task) -> TabularNetwork | None:
        """The networks that embed a table's columns; None where there are none."""
        if not self.embeds(task):
            return None
        assert self.embedding is not None
        inputs = pooled_part(task).inputs
        return tabular_network(inputs, task.classes, self.embedding, self.hidden, self.activation)

    def axes(self, task: Task) -> Tensor | None:
        """The axes along which wide rows are shown to the networks; None where columns are."""
        return None if self.embedding is None or not bare(task) else wide_axes(pooled_part(task).inputs)

    def share_of(self, parts: list[FoldTask], task: Task) -> list[FoldTask]:
        """The networks of one kind: the first, third, … deal's embed columns, those of the others do not.

        Folds that are named are one deal, and both kinds have networks for all of them.
        """
        if task.splits is not None or not (isinstance(task.model, TabularNetwork) or self.embeds(task)):
            return parts
        size, odd = len(parts) // self.deals, not isinstance(task.model, TabularNetwork)
        return [part for k, part in enumerate(parts) if (k // size) % 2 == odd]

    @classmethod
    def fit_group(
        cls,
        methods: Sequence[SelfCalibrated],
        tasks: Sequence[Task],
        callbacks: Sequence[Callback] = (),
        compile: Compile = "auto",
    ) -> list[Fitted]:
        tasks = [grouped(task.read()) for task in tasks]
        for method, task in zip(methods, tasks, strict=True):
            check_table(method.members, task.train)
        pooled = cross_fits([Pooled(m) for m in methods], tasks, callbacks, compile)
        fitted = [calibrated_mean(fit, "pooled", len(task.train)) for fit, task in zip(pooled, tasks, strict=True)]
        refit = methods[0].refit
        chosen = list(pooled)
        noisy = [k for k, fit in enumerate(pooled) if refit and labels_differ(fit, len(tasks[k].train))]
        if noisy:
            rivals = [LabelNoisy(methods[k]) for k in noisy]
            found = cross_fits(rivals, [tasks[k] for k in noisy], callbacks, compile)
            for k, other in zip(noisy, found, strict=True):
                rival = calibrated_mean(other, "label noise", len(tasks[k].train))
                if rival.failure is None and (fitted[k].failure or preferable((other, rival), (pooled[k], fitted[k]))):
                    fitted[k], chosen[k] = rival, other
        if methods[0].members == ("network",):
            return list(fitted)
        triples = zip(methods, fitted, chosen, tasks, strict=True)
        return [blended(m.members, mixture, fit, len(t.train), t.seed) for m, mixture, fit, t in triples]


def cross_fits(
    methods: Sequence[Pooled], tasks: Sequence[Task], callbacks: Sequence[Callback], compile: Compile
) -> list[CrossFit]:
    """Cross-fit the networks of each task: those of some deals embed the columns, those of others do not."""
    axes = [methods[0].given.axes(task) for task in tasks]
    shown = [task if own is None else rotated(task, own) for task, own in zip(tasks, axes, strict=True)]
    found: list[list[CrossFit]] = [[] for _ in tasks]
    plain: list[int] = []
    alike: dict[Any, list[tuple[int, Task]]] = {}
    for k, (method, task) in enumerate(zip(methods, shown, strict=True)):
        if (network := method.given.tabular(task)) is not None:
            alike.setdefault(network.kind, []).append((k, replace(task, model=network)))
        if network is None or method.given.deals > 1:
            plain.append(k)
    for same in alike.values():  # networks that are embedded alike run as one population
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
    """Two kinds of networks as one, each by the share that held-out labels ask for: a quarter, a half or three.

    Neither kind is left out, unless one of its networks broke down: a mean of both is seldom worse than the better one,
    and few labels cannot tell which that is.
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


@dataclass(frozen=True)
class Pooled(Method):
    """The pooled candidate: all labels are held out once a repeat, and φ is an L2 strength per layer and column."""

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
        """The L2 strengths that held-out labels choose."""
        return column_strengths(model, len(task.train)) if isinstance(task.model, TabularNetwork) else L2(model)

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        return Bilevel(model, self.strengths(model, task), **self.data(task), seed=task.seed)

    def solving(self, group: Group) -> Solving:
        columns = group.tasks[0].train.inputs
        narrow = isinstance(columns, Tensor) and columns[0].numel() <= WIDE
        longer = self.given.embedding is not None and group.problems[0].train.batches > 1 and narrow
        fewest = 800 if longer else 400
        return self._solving(group, group.steps(lambda m: m.given.epochs, fewest, 40))

    def _solving(self, group: Group, steps: list[int]) -> Solving:
        own, rate = self.given, group.each(lambda m, _: m.given.learning_rate)
        total = steps[0] + own.steps
        return Solving(
            hypergradient=Truncated(own.steps, min(own.last, own.steps)),
            inner_optimizer=Adam(cosine(rate, total, final=0.05 * rate) if own.decay else rate),
            outer_optimizer=Adam(own.outer_rate),
            steps=steps,
            compile="trace" if isinstance(group.tasks[0].model, TabularNetwork) else "auto",
        )


@dataclass(frozen=True)
class LabelNoisy(Pooled):
    """The label-noise candidate: only validation labels are held out and trusted, and φ gains a rate of flips."""

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
        outer = OuterVariables(self.strengths(model, task), LabelNoise(task.classes))
        return Bilevel(model, outer, **self.data(task), seed=task.seed)

    def solving(self, group: Group) -> Solving:
        steps = group.steps(lambda m: None if m.given.epochs is None else 3 * m.given.epochs, 1200, 40)
        return self._solving(group, steps)


def preferable(rival: tuple[CrossFit, Mixture], present: tuple[CrossFit, Mixture], *, least: int = 10) -> bool:
    """Whether a candidate that there is evidence for may replace the present one.

    It may unless its loss is higher by more than a standard error on rows that no outer loss saw, or there are too few
    of these to tell.
    """
    rows = rival[0].rows("choose")
    rows = rows[torch.isin(rows, present[0].rows("choose"))]
    if len(rows) < least:
        return False
    losses, than = (_losses(fit, mixture, rows) for fit, mixture in (rival, present))
    return not clearly_worse(losses, than)


def clearly_worse(losses: Tensor, than: Tensor) -> bool:
    """Whether paired losses are higher by more than one standard error of their difference."""
    loss = losses - than
    return bool(loss.mean() > loss.std() / len(loss) ** 0.5)


def calibrated_mean(fit: CrossFit, candidate: str, train: int) -> Mixture:
    """The networks' mean, with the last step that held-out logits ask for."""
    logits, data, head = fit.held_out_logits, fit.data, fit.heads[0]
    rows = fit.rows("judge")
    last = last_step(logits[rows], data, rows)
    extras: dict[str, Any] = {"candidate": candidate, "temperature": last.temperature, "lapse": last.lapse}
    extras["bias"] = torch.as_tensor(last.bias)
    with torch.no_grad():
        extras |= head.problem.outer_view.run(head.phi, read_outer)
    mixture = Mixture(
        fit.heads,
        last.temperature,
        extras["bias"],
        last.lapse,
        "logits",
        extras,
        failure=failure(*fit.heads),
        shares=fit.shares,
    )
    extras["held_out"] = mixture.calibrated(logits).cpu()
    return replace(mixture, extras=extras | _doubts(mixture, fit, train))


def last_step(logits: Tensor, data: Part, rows: Tensor) -> LastStep:
    """T, b and λ for held-out logits of some rows."""
    weights = None if data.weights is None else data.weights[rows].double().cpu().numpy()
    groups = None if data.groups is None else data.groups[rows].cpu().numpy()
    return fit_last_step(logits.cpu().numpy(), data.labels[rows].cpu().numpy(), weights, groups=groups)


def _doubts(mixture: Mixture, fit: CrossFit, train: int) -> dict[str, Any]:
    """How wrong each training label looks, 0 to 1, and the rate of wrong ones where φ has such a rate.

    By networks that never saw a label, where there are any: in the label-noise candidate all of them trained on it,
    knowing that it might be wrong.
    """
    part, held = fit.data[slice(0, train)], mixture.extras["held_out"][:train]
    known = held.isnan().any(1)
    probs = held
    if known.any():
        own = torch.cat([mixture.probs(x) for x, _ in part.pieces()])
        probs = torch.where(known.unsqueeze(1), own, held)
    labels = part.labels.cpu()
    if "label_noise" not in mixture.extras:
        return {"suspicion": suspicion(torch.ones(train), probs, labels)}
    rate = flip_rate(probs, labels, None if part.weights is None else part.weights.cpu())
    return {"suspicion": wrong_label(probs, labels, rate), "label_noise": torch.full((probs.shape[1],), rate)}


def _losses(fit: CrossFit, mixture: Mixture, rows: Tensor) -> Tensor:
    """Held-out losses of some rows, by the weight of each."""
    probs = mixture.calibrated(fit.held_out_logits[rows])
    losses = -probs.gather(1, fit.data.labels[rows].unsqueeze(1)).squeeze(1).clamp_min(1e-300).log()
    if fit.data.weights is not None:
        losses = losses * fit.data.weights[rows] / fit.data.weights[rows].mean()
    return losses.cpu()
