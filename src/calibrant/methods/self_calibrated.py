"""The recommended method: few, well-placed outer variables, cross-fitted, with one setting for all data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from calibrant.bilevel import Callback
from calibrant.methods.base import Compile, Method
from calibrant.methods.blend import blended, check_members, check_table
from calibrant.methods.calibrated_mean import calibrated_mean
from calibrant.methods.candidates import LabelNoisy, Pooled, cross_fits, preferable
from calibrant.methods.crossfit import FoldTask, grouped
from calibrant.methods.fitted import Fitted
from calibrant.methods.tabular import EMBEDDINGS, TabularNetwork, bare, pooled_part, tabular_network, wide_axes
from calibrant.methods.task import Task, batch_size
from calibrant.methods.wrong_labels import labels_differ

FULL_BATCH, BATCH = 512, 256
"""Up to ``FULL_BATCH`` rows a step sees all of them, and ``BATCH`` of more."""


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
