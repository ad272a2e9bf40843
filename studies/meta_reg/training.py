"""Train one network, and make the records of all methods that share it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import metrics
from calibrant.bilevel import Bilevel, Callback, Checkpoint, FocalWithGamma, NonFiniteError, Run
from calibrant.bilevel.running.checkpoints import load_run
from calibrant.methods import Calibrated, Fitted, Samples
from calibrant.methods.confidence import Mapped
from calibrant.methods.core.results import Failed
from calibrant.methods.fit.guards import Interruptible
from studies.common.keys import Key
from studies.common.runs import Meter, progress
from studies.common.study import tell_user
from studies.meta_reg.data import PreparedImages
from studies.meta_reg.measures import SCORES, logits, measure
from studies.meta_reg.plan import Planned, network_of, trained
from studies.report import Record

PIECE = 2000
"""Number of images per prediction batch."""


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
        self._since = time.perf_counter()

    def on_step(self, run: Run) -> None:
        problem = run.problem
        assert isinstance(problem, Bilevel)
        epoch = run.state.step // problem.train.batches
        if epoch <= (self.rows[-1]["epoch"] if self.rows else 0):
            return
        _wait(run.state.params)
        begin = time.perf_counter()
        found = self._measure(problem, run)
        _wait(run.state.params)
        end = time.perf_counter()
        self.rows.append({"epoch": epoch, "seconds": begin - self._since, **found})
        self.seconds += end - begin
        self._since = end

    @torch.no_grad()
    def _measure(self, problem: Bilevel, run: Run) -> dict[str, float]:
        net = problem.view.bind(run.state.params, run.state.buffers, train=False, autocast=problem.autocast)
        logits, features = [], []
        learns = isinstance(problem.inner_loss, FocalWithGamma)
        for rows in torch.arange(len(self.part), device=self.part.labels.device).split(PIECE):
            inputs, _ = next(self.part[rows].pieces())
            if learns:
                features.append(net.features(inputs))
                logits.append(net.head(features[-1]))
            else:
                logits.append(net.logits(inputs))
        scores = torch.cat(logits).double()
        if not scores.isfinite().all():
            # on a GPU, steps are checked with a delay: this names the step that failed
            run.deferred_finite_check.look()
            raise NonFiniteError(
                f"The network's logits were not finite after outer step {run.step}. Try a smaller learning rate."
            )
        probs = scores.softmax(-1).cpu()
        labels = self.part.labels.cpu()
        found = {
            "error": 1 - float(metrics.accuracy(probs, labels)),
            "ece": float(metrics.ece(probs, labels)),
        }
        if learns:
            gamma = problem.outer_view.run(run.phi, lambda outer: outer(torch.cat(features))).double()
            found |= {"gamma_mean": gamma.mean().item(), "gamma_std": gamma.std(correction=0).item()}
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.seconds = list(state["rows"]), state["seconds"]

    def steady_seconds(self) -> float | None:
        """Training time without compilation: an epoch longer than twice the median counts as a mean epoch.

        None without any epoch.
        """
        if not self.rows:
            return None
        each = np.array([row["seconds"] for row in self.rows])
        return float(each[each <= 2 * np.median(each)].mean() * len(each))

    def columns(self) -> dict[str, list[float]]:
        """The rows as lists by name, with four significant digits."""
        names = [name for name in (self.rows[0] if self.rows else ()) if name != "seconds"]
        return {name: [float(f"{row[name]:.4g}") for row in self.rows] for name in names}


def _wait(tensor: Tensor) -> None:
    """Wait for the device, so that times are assigned correctly."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


EVERY = 60.0
"""Seconds between two checkpoints."""


class OutOfTime(Exception):
    """The time of a command is up; the next command continues the run from its checkpoint."""


class UnusableCheckpoint(Exception):
    """A checkpoint of another problem, other settings or another version; the run must start again."""


class Resume(Callback):
    """Continues a new run from its checkpoint, if there is one. It must come before callbacks that have a state.

    A checkpoint that cannot be used raises :class:`UnusableCheckpoint`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_start(self, run: Run) -> None:
        if run.step == 0 and self.path.exists():
            try:
                load_run(self.path, run)
            except ValueError as error:
                raise UnusableCheckpoint(str(error)) from error


class TimedCheckpoint(Checkpoint):
    """Saves a checkpoint every ``seconds``, and one at ``deadline`` (``time.monotonic``), which ends the run.

    If Ctrl-C was pressed while ``interrupt`` was listening, it also saves one and raises KeyboardInterrupt.
    """

    def __init__(
        self,
        path: Path,
        *,
        seconds: float = EVERY,
        deadline: float | None = None,
        interrupt: Interruptible | None = None,
    ) -> None:
        super().__init__(path, every=1)
        self.seconds, self.deadline, self.interrupt = seconds, deadline, interrupt
        self._saved = 0.0

    def on_start(self, run: Run) -> None:
        super().on_start(run)
        self._saved = time.monotonic()

    def on_step(self, run: Run) -> None:
        now = time.monotonic()
        over = self.deadline is not None and now > self.deadline and run.step < run.outer_steps
        pressed = self.interrupt is not None and self.interrupt.pressed
        if over or pressed or now - self._saved >= self.seconds:
            super().on_step(run)
            self._saved = now
        if pressed:
            raise KeyboardInterrupt
        if over:
            raise OutOfTime


def train(
    planned: Sequence[Planned],
    prepared: PreparedImages,
    *,
    device: torch.device,
    folder: Path | None = None,
    logits_folder: Path | None = None,
    seconds: float = 60.0,
    deadline: float | None = None,
    shared: bool = False,
) -> dict[Key, Record]:
    """Train the network of some methods once, and measure each of them.

    Parameters
    ----------
    planned : methods of one seed with the same network: a method and its calibrators
    prepared : the data, on ``device``
    folder : folder for a checkpoint every ``seconds``, from which an interrupted run continues; the checkpoint is
        removed at the end. Ctrl-C saves one after the current step. None: no checkpoints
    logits_folder : folder for the network's logits, see :func:`save_logits`; None: they are not stored
    shared : whether other programs use the device; training times for comparisons are then not recorded
    deadline : a time of ``time.monotonic``; the run then saves a checkpoint and raises ``OutOfTime``
    """
    key, method = planned[0]
    base = trained(method)
    path = None if folder is None else folder / f"{key.config}.safetensors"
    meter = Meter(device)

    def fit() -> tuple[Fitted, EpochCurve]:
        curve = EpochCurve(prepared.test)
        callbacks: list[Callback] = [curve, *progress(f"{key['method']}, seed {key['seed']}")]
        interrupt = Interruptible()
        if path is not None:
            saving = TimedCheckpoint(path, seconds=seconds, deadline=deadline, interrupt=interrupt)
            callbacks = [Resume(path), *callbacks, saving]
        # Shapes stay the same during a run, so searching for the fastest convolutions pays off.
        fast = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True)
        with meter([0]), fast, nullcontext() if path is None else interrupt.listening():
            try:
                fitted: Fitted = base.fit(prepared.task, callbacks=callbacks)
            except NonFiniteError as error:
                fitted = Failed(str(error), prepared.task.n_classes)
        if interrupt.pressed:  # after the last step
            raise KeyboardInterrupt
        return fitted, curve

    try:
        fitted, curve = fit()
    except UnusableCheckpoint as error:
        assert path is not None
        tell_user(f"The run starts again, because its checkpoint cannot be used. {error}")
        path.unlink()
        fitted, curve = fit()
    cost = meter.costs[0]
    epochs = sum(row["seconds"] for row in curve.rows)
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
    found: dict[Key, Record] = {}
    for own, wanted in planned:
        begin = time.perf_counter()
        model = network_of(wanted, fitted)
        model = wanted.calibrate(model, prepared.task) if isinstance(wanted, Calibrated) else model
        calibrated = time.perf_counter() - begin
        record: Record = dict(own.fields)
        failure = fitted.failure
        if not failure:
            begin = time.perf_counter()
            try:
                record |= measure(model, wanted, prepared) | {"failure": None}
            except NonFiniteError as error:
                failure = str(error)
            record["measure_seconds"] = time.perf_counter() - begin
        if failure:
            record |= dict.fromkeys((*SCORES, "floor")) | {"failure": failure}
        found[own] = record | common | {"seconds": common["train_seconds"] + calibrated}
    if path is not None:
        path.unlink(missing_ok=True)
    if logits_folder is not None and not fitted.failure:
        name = f"{key['dataset']}-{key['recipe']}-{key['method']}-{key['seed']}.npz"
        save_logits(logits_folder / name, fitted, prepared)
    return found


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
