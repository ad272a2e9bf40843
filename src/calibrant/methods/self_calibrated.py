"""The recommended method: few outer variables, learned by cross-fitting, with the same settings for all data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn

from calibrant.base.settings import check_choice, check_number
from calibrant.bilevel import L2, Adam, Bilevel, LabelNoise, OuterVariable, OuterVariables, Truncated, cosine
from calibrant.methods import tabular
from calibrant.methods.blend import blended, check_members, check_table
from calibrant.methods.core.method import Method, SolveSettings, TrainedNetwork, TrainingGroup, failure
from calibrant.methods.core.results import Fitted, Mixture
from calibrant.methods.core.samples import batch_size
from calibrant.methods.core.task import Task, pooled_part
from calibrant.methods.crossfit.crossfit import (
    CrossFit,
    FoldTask,
    calibrated_mean,
    fold_tasks,
    held_out_losses,
    labels_differ,
    last_step,
)
from calibrant.methods.crossfit.folds import grouped
from calibrant.models.architectures.mlp import Activation

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
class Candidate(Method):
    """The networks of one candidate. φ is an L2 strength per layer and column.

    Each repeat holds out every label once. With ``label_noise``, only validation labels are held out and trusted, and φ
    includes a rate of flips.
    """

    settings: SelfCalibrated
    label_noise: bool = False

    tied: ClassVar[bool] = True

    def parts(self, task: Task) -> Sequence[Task]:
        settings = self.settings
        if settings.refit:
            folds = fold_tasks(task, settings.folds, settings.repeats, settings.choose, only_val=self.label_noise)
        else:
            task.need_val("SelfCalibrated(refit=False)")
            folds = fold_tasks(task, 1, only_val=True)
        parts = settings.share_of(folds, task)
        if not self.label_noise:
            return parts
        trusted = torch.arange(len(parts[0].pooled), device=task.train.labels.device) >= len(task.train)
        return [replace(part, constants={"trusted": trusted}) for part in parts]

    def network(self, task: Task) -> nn.Module:
        return self.settings.network(task)

    def result(self, task: Task, outcomes: Sequence[TrainedNetwork]) -> Any:
        return CrossFit.of([(o.solution, o.task) for o in outcomes if isinstance(o.task, FoldTask)])

    def data(self, task: Task) -> dict[str, Any]:
        assert isinstance(task, FoldTask)
        return task.streams(self.settings.rows_of_step(len(task.train)))

    def outer(self, model: nn.Module, task: Task) -> OuterVariable:
        """φ, which is learned from held-out labels."""
        strengths: OuterVariable = L2(model)
        if isinstance(task.model, tabular.TabularNetwork):
            groups = task.train.groups
            strengths = tabular.column_strengths(
                model, len(task.train), None if groups is None else len(groups.unique())
            )
        return OuterVariables(strengths, LabelNoise(task.n_classes)) if self.label_noise else strengths

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        return Bilevel(model, self.outer(model, task), **self.data(task), seed=task.seed)

    def steps(self, group: TrainingGroup) -> list[int]:
        """The training steps of each network."""
        if self.label_noise:
            return group.steps(lambda m: None if m.settings.epochs is None else 3 * m.settings.epochs, 1200, 40)
        task = group.tasks[0]
        narrow = isinstance(task.train.inputs, Tensor) and task.train.inputs[0].numel() <= NARROW
        rotated = type(task.model) is tabular.PlainNetwork
        longer = self.settings.embedding is not None and group.problems[0].train.batches > 1 and narrow and not rotated
        return group.steps(lambda m: m.settings.epochs, 800 if longer and not soon_learned(task) else 400, 40)

    def solving(self, group: TrainingGroup) -> SolveSettings:
        options, steps = self.settings, self.steps(group)
        rate = group.each(lambda m, _: m.settings.learning_rate)
        last = min(options.last, SHORT) if costly(group.tasks[0]) else options.last
        return SolveSettings(
            hypergradient=Truncated(options.steps, min(last, options.steps)),
            inner_optimizer=Adam(cosine(rate, steps[0] + options.steps, final=0.05 * rate) if options.decay else rate),
            outer_optimizer=Adam(options.outer_learning_rate),
            steps=steps,
            compile="trace" if isinstance(group.tasks[0].model, tabular.PlainNetwork) else "auto",
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
    inputs, ours = task.train.inputs, task.model is None or isinstance(task.model, tabular.PlainNetwork)
    if not (ours and isinstance(inputs, Tensor) and inputs.dim() == 2):
        return False
    columns, rows = inputs.shape[1], len(task.train) if task.val is None else len(task.train) + len(task.val)
    wide = rows * columns > CELLS and (type(task.model) is tabular.PlainNetwork or rows < 2 * columns)
    return wide or task.n_classes > MANY_CLASSES


def cross_fits(methods: Sequence[Candidate], tasks: Sequence[Task], **how: Any) -> list[CrossFit]:
    """Cross-fit the networks of each task: those that embed the columns, and plain ones on the columns or their axes.

    Networks with the same kind of embedding are trained as one population.
    """
    populations: dict[Any, list[tuple[int, Task]]] = {}
    axes = [method.settings.axes(task) for method, task in zip(methods, tasks, strict=True)]
    for k, (method, task, turn) in enumerate(zip(methods, tasks, axes, strict=True)):
        settings = method.settings
        if turn is not None or tabular.only_projected(task):
            task = tabular.on_axes(task, turn, settings.hidden, settings.activation)
        network = settings.embedding_network(task)
        if network is not None:
            populations.setdefault(network.kind, []).append((k, replace(task, model=network)))
        if network is None or settings.deals > 1:
            populations.setdefault("plain", []).append((k, task))
    fits_of_task: list[list[CrossFit]] = [[] for _ in tasks]
    for kind in sorted(populations, key=lambda kind: kind == "plain"):
        population = populations[kind]
        fits = Candidate.fit_group([methods[k] for k, _ in population], [t for _, t in population], **how)
        for (k, _), fit in zip(population, fits, strict=True):
            turn = axes[k]
            fits_of_task[k].append(fit if turn is None else tabular.rotated_back(fit, turn, pooled_part(tasks[k])))
    return [weighed(fits) for fits in fits_of_task]


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
    complete = ~torch.cat(pair, 1).isnan().any(1)
    mixed = {share: torch.lerp(pair[0][complete], pair[1][complete], share) for share in (0.5, 0.25, 0.75)}
    share = min(mixed, key=lambda share: last_step(mixed[share], first.data, rows[complete]).loss)
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


FULL_BATCH, BATCH = 512, 256
"""A step uses all rows if there are at most ``FULL_BATCH``, and otherwise ``BATCH`` rows."""


@dataclass(frozen=True)
class SelfCalibrated(Method):
    """Cross-fitted networks with regularisation learned from the held-out loss, calibrated on held-out labels.

    The method chooses between two candidates automatically:

    * **pooled**: training and validation parts are pooled; φ is an L2 strength per layer and a factor per column.
    * **label noise**, if there is a validation part *and* its labels agree better with the pooled networks than the
      training labels do: only validation samples are held out, their labels are trusted, and φ includes the rate at
      which training labels were flipped (:class:`calibrant.bilevel.LabelNoise`). It replaces the pooled candidate
      unless its loss is higher by more than one standard error on validation samples that neither outer loss uses.

    In both, each network is trained without one of K folds, and folds are drawn ``repeats`` times. One φ is learned
    from the held-out losses of all networks by hypergradients (:mod:`calibrant.methods.crossfit.crossfit`). The
    classifier is ``(1 − λ)·softmax(mean_k z_k(x)/T + b) + λ/C``. T, b and λ are fitted to held-out logits: the mean
    logits of the networks that were not trained on a sample (:mod:`calibrant.methods.crossfit.crossfit`). There is no
    early stopping, and nothing needs tuning.

    Parameters
    ----------
    hidden, activation : tuple of int, and str
        Units of the hidden layers, and their activation; smooth activations fit smooth boundaries better.
    folds : int
        K, the number of folds.
    repeats : int
        How often the folds are drawn. With 1, T is fitted to single networks. They need a higher T than their mean, so
        the classifier is under-confident.
    epochs : int, optional
        Passes over the data; three times as many for the label-noise candidate. None: 400 steps with the full batch;
        with mini-batches 800 steps or 40 epochs, whichever is more, or 400 steps or 40 epochs for more than 100
        classes, more than 256 columns, fewer than 50 rows outside the largest class, or ``embedding=None``; for the
        label-noise candidate 1,200 steps or 40 epochs, whichever is more.
    learning_rate, decay : float and bool
        Adam's learning rate for the networks; with ``decay`` it falls to a twentieth along half a cosine.
    steps : int
        Inner steps per outer step.
    last : int
        Number of these steps that the hypergradient differentiates through; all steps if there are fewer. For large
        tables of wide rows and for more than 100 classes, it is at most 2, which saves time.
    outer_learning_rate : float
        Adam's learning rate for the logarithms of the L2 strengths and the log-odds of the noise rate.
    choose : float
        Share of the validation samples that is used only to choose between the candidates.
    members : tuple of {"network", "trees", "linear"}
        Kinds of classifiers in the log-linear pool (:mod:`calibrant.pool.pool`): "network", and optionally "trees"
        (gradient boosting) and "linear" (logistic regression), cross-fitted on the networks' folds. With networks
        alone, there is no pool.
    refit : bool
        True uses all labels as described above. False trains one network on the training part, without cross-fitting.
        The validation part, which is then required, is used to learn φ and to fit T, b and λ. There are no folds and no
        search for label noise, so ``folds``, ``repeats`` and ``choose`` are not used.
    batch_size : int, optional
        Rows per step. None: all rows if there are at most 512, else 256; with ``embedding=None`` all rows if there are
        at most 4,096, else 512.
    embedding : {"piecewise", "linear"} or None
        In the first, third, … repeat, the networks embed the columns of a table in this way
        (:mod:`calibrant.models.architectures.mlp`; "linear" does not embed) and learn an L2 factor for each column, if
        there are at least 20 rows per column. The other networks are plain perceptrons. The share of each kind in the
        mean is chosen by held-out loss. None: all networks are plain, with an L2 strength per layer. A model given with
        the task is not embedded.
    """

    hidden: tuple[int, ...] = (64, 64)
    activation: Activation = "silu"
    folds: int = 5
    repeats: int = 2
    epochs: int | None = None
    learning_rate: float = 0.02
    steps: int = 10
    last: int = 5
    outer_learning_rate: float = 0.2
    choose: float = 1 / 3
    members: tuple[str, ...] = ("network",)
    refit: bool = True
    decay: bool = True
    batch_size: int | None = None
    embedding: tabular.ColumnEmbedding | None = "piecewise"

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate"})

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ValueError(f"folds must be at least 2; got {self.folds}.")
        for name in ("repeats", "steps", "last"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        if not 0 < check_number("choose", self.choose) < 1:
            raise ValueError(f"choose must lie strictly between 0 and 1; got {self.choose}.")
        check_choice("embedding", self.embedding, (*get_args(tabular.ColumnEmbedding), None))
        check_members(self.members)

    @property
    def networks(self) -> int:
        """The number of networks that one fit trains."""
        return self.folds * self.repeats if self.refit else 1

    def rows_at_once(self, task: Task) -> int:
        pooled = len(task.train) + (len(task.val) if task.val is not None else 0)
        return min(self.last, self.steps) * self.networks * (self.rows_of_step(pooled) or pooled)

    def rows_of_step(self, rows: int) -> int | None:
        """The number of rows per step; None: all rows."""
        if self.batch_size is None and self.embedding is not None:
            return None if rows <= FULL_BATCH else BATCH
        return batch_size(rows, self.batch_size)

    @property
    def deals(self) -> int:
        """How often the folds are drawn."""
        return self.repeats if self.refit else 1

    def embeds(self, task: Task) -> bool:
        """Whether some networks embed the columns of a task.

        This needs rows of numbers, at least two rows per column, and a task without a model. With fewer rows, there
        would be almost as many column factors as labels, and they would overfit these labels.
        """
        if self.embedding is None or not tabular.bare(task):
            return False
        rows = len(task.train) + (0 if task.val is None else len(task.val))
        columns = task.train.inputs.shape[1] - task.train.projected
        return bool(columns and rows >= 2 * columns)

    def embedding_network(self, task: Task) -> tabular.TabularNetwork | None:
        """The factory of networks that embed a table's columns; None if no network does."""
        if not self.embeds(task):
            return None
        assert self.embedding is not None
        return tabular.tabular_network(pooled_part(task), task.n_classes, self.embedding, self.hidden, self.activation)

    def axes(self, task: Task) -> Tensor | None:
        """The axes that wide rows are projected on for the networks; None if the networks use the columns."""
        return None if self.embedding is None or not tabular.bare(task) else tabular.wide_axes(pooled_part(task).inputs)

    def share_of(self, parts: list[FoldTask], task: Task) -> list[FoldTask]:
        """The tasks for one kind of network. Networks of the first, third, … repeat embed columns, the others do not.

        Folds given as ``splits`` are one repeat, and both kinds have networks for all of them.
        """
        if task.splits is not None or not (isinstance(task.model, tabular.TabularNetwork) or self.embeds(task)):
            return parts
        size, odd = len(parts) // self.deals, not isinstance(task.model, tabular.TabularNetwork)
        return [part for k, part in enumerate(parts) if (k // size) % 2 == odd]

    @classmethod
    def fit_group(cls, methods: Sequence[SelfCalibrated], tasks: Sequence[Task], **how: Any) -> list[Fitted]:
        tasks = [grouped(task.read()) for task in tasks]
        refit = methods[0].refit
        if len(tasks) == 1 and refit:
            task, positions = tabular.merged_copies(tasks[0])
            if positions is not None:
                return [tabular.for_all_rows(cls.fit_group(methods, [task], **how)[0], positions)]
        for method, task in zip(methods, tasks, strict=True):
            check_table(method.members, task.train)
        fits = cross_fits([Candidate(m) for m in methods], tasks, **how)
        fitted = [calibrated_mean(fit, "pooled", len(task.train)) for fit, task in zip(fits, tasks, strict=True)]
        noisy = [k for k, fit in enumerate(fits) if refit and labels_differ(fit, len(tasks[k].train))]
        if noisy:
            rivals = cross_fits(
                [Candidate(methods[k], label_noise=True) for k in noisy], [tasks[k] for k in noisy], **how
            )
            for k, other in zip(noisy, rivals, strict=True):
                rival = calibrated_mean(other, "label noise", len(tasks[k].train))
                if rival.failure is None and (fitted[k].failure or preferable((other, rival), (fits[k], fitted[k]))):
                    fitted[k], fits[k] = rival, other
        if methods[0].members == ("network",):
            return list(fitted)
        each = zip(methods, fitted, fits, tasks, strict=True)
        return [blended(m.members, mixture, fit, len(t.train), t.seed) for m, mixture, fit, t in each]
