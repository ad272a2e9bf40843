"""Train one network, and make the records of all methods that share it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant import metrics
from calibrant.bilevel import Bilevel, Callback, FocalWithGamma, NonFiniteError, Run
from calibrant.methods import Calibrated, Fitted, Samples
from calibrant.methods.confidence import Mapped
from calibrant.methods.core.results import Failed
from calibrant.methods.fit.guards import Opening, Resumable
from studies.common.keys import Key
from studies.common.runs import Meter, Planned, progress
from studies.meta_reg.data import PreparedImages
from studies.meta_reg.measures import SCORES, logits, measure, softmax
from studies.meta_reg.plan import network_of, trained
from studies.report import Record

EVERY = 60.0
"""Seconds between two checkpoints."""


class EpochCurve(Callback):
    """Measures the network of a single run on a part after every epoch.

    ``rows`` has one entry per epoch: ``epoch``, ``error``, ``ece`` (15 bins), ``seconds`` (training time since the
    previous entry), and, if the loss has a γ, ``gamma_mean`` and ``gamma_std`` over the part. The network has its
    current weights; a moving average of the weights is used only at the end.
    """

    def __init__(self, part: Samples) -> None:
        self.part = part
        self.rows: list[dict[str, float]] = []
        self.seconds = 0.0
        """The time spent on measuring."""
        self._since = 0.0

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.rows, self.seconds = [], 0.0
        self._since = _now(run)

    def on_step(self, run: Run) -> None:
        problem = run.problem
        assert isinstance(problem, Bilevel)
        epoch = run.state.step // problem.train.batches
        if epoch > (self.rows[-1]["epoch"] if self.rows else 0):
            begin = _now(run)
            scores = self._measure(problem, run)
            self.rows.append({"epoch": epoch, "seconds": begin - self._since, **scores})
            self._since = _now(run)
            self.seconds += self._since - begin

    @torch.no_grad()
    def _measure(self, problem: Bilevel, run: Run) -> dict[str, float]:
        net = problem.view.bind(run.state.params, run.state.buffers, train=False, autocast=problem.autocast)
        learns = isinstance(problem.inner_loss, FocalWithGamma)
        if learns:
            features, labels = self.part.predicted(net.features)
            device = run.state.params.device
            gamma = problem.outer_view.run(run.phi, lambda outer: outer(features.to(device))).double()
            scores = net.head(features.to(device)).cpu()
        else:
            scores, labels = self.part.predicted(net.logits)
        if not scores.isfinite().all():
            # on a GPU, steps are checked with a delay: this names the step that failed
            run.deferred_finite_check.look()
            raise NonFiniteError(
                f"The network's logits were not finite after outer step {run.step}. Try a smaller learning rate."
            )
        probs = softmax(scores.double(), 1.0)
        row = {"error": 1 - float(metrics.accuracy(probs, labels)), "ece": float(metrics.ece(probs, labels))}
        if learns:
            row |= {"gamma_mean": gamma.mean().item(), "gamma_std": gamma.std(correction=0).item()}
        return row

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.seconds = list(state["rows"]), state["seconds"]

    def steady_seconds(self) -> float | None:
        """Training time without compilation: an epoch longer than twice the median counts as a mean epoch.

        None without any epoch.
        """
        times = np.array([row["seconds"] for row in self.rows])
        return float(times[times <= 2 * np.median(times)].mean() * len(times)) if self.rows else None

    def columns(self) -> dict[str, list[float]]:
        """The rows as lists by name, with four significant digits."""
        names = [name for name in (self.rows[0] if self.rows else ()) if name != "seconds"]
        return {name: [float(f"{row[name]:.4g}") for row in self.rows] for name in names}


def _now(run: Run) -> float:
    """The time after the device has finished, so that times are assigned correctly."""
    if run.state.params.is_cuda:
        torch.cuda.synchronize(run.state.params.device)
    return time.perf_counter()


class OutOfTime(Exception):
    """The time of a command is up; the next command continues the run from its checkpoint."""


class TimedCheckpoint(Resumable):
    """Saves a checkpoint every ``seconds``, and one at ``deadline`` (``time.monotonic``), which ends the run."""

    def __init__(self, folder: Path, seconds: float, deadline: float | None) -> None:
        super().__init__(folder, seconds)
        self.deadline = deadline

    def on_step(self, run: Run) -> None:
        over = self.deadline is not None and time.monotonic() > self.deadline and run.step < run.outer_steps
        if over:
            self.seconds = 0.0
        super().on_step(run)
        if over:
            raise OutOfTime


def train(
    planned: Sequence[Planned],
    prepared: PreparedImages,
    *,
    device: torch.device,
    folder: Path | None = None,
    logits_folder: Path | None = None,
    seconds: float = EVERY,
    deadline: float | None = None,
    shared: bool = False,
) -> dict[Key, Record]:
    """Train the network of some methods once, and measure each of them.

    Parameters
    ----------
    planned : methods of one seed with the same network: a method and its calibrators
    prepared : the data, on ``device``
    folder : folder for a checkpoint every ``seconds``, from which an interrupted run continues; the checkpoint is
        removed at the end. None: no checkpoints
    logits_folder : folder for the network's logits, see :func:`save_logits`; None: they are not stored
    shared : whether other programs use the device; training times for comparisons are then not recorded
    deadline : a time of ``time.monotonic``; the run then saves a checkpoint and raises ``OutOfTime``
    """
    key, method = planned[0]
    base = trained(method)
    curve, meter = EpochCurve(prepared.test), Meter(device)
    callbacks: list[Callback] = [curve, *progress(f"{key['method']}, seed {key['seed']}")]
    if folder is not None:
        folder = folder / key.config
        saving = TimedCheckpoint(folder, seconds, deadline)
        callbacks = [Opening(saving), *callbacks, saving]
    # Shapes stay the same during a run, so searching for the fastest convolutions pays off.
    with meter([0]), torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        try:
            fitted: Fitted = base.fit(prepared.task, callbacks=callbacks)
        except NonFiniteError as error:
            fitted = Failed(str(error), prepared.task.n_classes)
    cost, epochs = meter.costs[0], sum(row["seconds"] for row in curve.rows)
    common: dict[str, Any] = {
        # In a resumed run, the curve includes earlier epochs, but this process's timer does not.
        "train_seconds": max(cost.seconds - curve.seconds, epochs),
        "steady_seconds": None if shared else curve.steady_seconds(),
        "peak_memory": cost.peak_memory,
        "train_size": len(prepared.task.train),
        "test_size": len(prepared.test),
        "batch_size": base.recipe.batch_size,  # type: ignore[attr-defined]
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "curve": curve.columns(),
    }
    records: dict[Key, Record] = {}
    for method_key, wanted in planned:
        begin = time.perf_counter()
        model = network_of(wanted, fitted)
        model = wanted.calibrate(model, prepared.task) if isinstance(wanted, Calibrated) else model
        calibrated = time.perf_counter()
        failure, measured = fitted.failure, dict[str, Any]()
        if not failure:
            try:
                measured = measure(model, wanted, prepared)
            except NonFiniteError as error:
                failure = str(error)
            measured["measure_seconds"] = time.perf_counter() - calibrated
        empty = dict.fromkeys((*SCORES, "floor")) if failure else {}
        total = {"seconds": common["train_seconds"] + calibrated - begin}
        records[method_key] = dict(method_key.fields) | measured | empty | {"failure": failure} | common | total
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    if logits_folder is not None and not fitted.failure:
        name = f"{key['dataset']}-{key['recipe']}-{key['method']}-{key['seed']}.npz"
        save_logits(logits_folder / name, fitted, prepared)
    return records


def save_logits(path: Path, fitted: Fitted, prepared: PreparedImages) -> None:
    """Store a network's logits and labels of the held-out and test parts, so that calibrators need no second training.

    The logits are those before the confidence map, in half precision: an error of at most 0.05 % of each logit.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    network = fitted.model if isinstance(fitted, Mapped) else fitted
    arrays: dict[str, Any] = {}
    for name, part in (("val", prepared.task.val), ("meta", prepared.task.meta), ("test", prepared.test)):
        if part is not None:
            arrays[f"{name}_logits"] = logits(network, part).numpy().astype(np.float16)
            arrays[f"{name}_labels"] = part.labels.cpu().numpy().astype(np.int16)
    np.savez_compressed(path, **arrays)
