"""Callbacks of ``calibrant.fit``: scores on validation data, checkpoints, interrupts and progress."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from calibrant import metrics
from calibrant.base.warning import warn
from calibrant.bilevel import Callback
from calibrant.bilevel.running.checkpoints import load_run, save_run
from calibrant.bilevel.running.run import Run
from calibrant.methods.averaged import evaluated
from calibrant.methods.core.samples import Samples
from calibrant.metrics import nll
from calibrant.models.functional.global_state import generators_restored
from calibrant.posthoc.temperature import Temperature

if TYPE_CHECKING:
    from calibrant.methods.fit.trained import Trained


class ValidationScores(Callback):
    """A callback that receives the validation data and the result of :func:`calibrant.fit`."""

    part: Samples | None = None

    def watch(self, part: Samples | None) -> None:
        """Receive the validation part before training."""
        self.part = part

    def finish(self, result: Trained) -> None:
        """Receive the result after training and calibration."""

    def validation(self, run: Run) -> dict[str, float]:
        """Scores of the current network on the validation part; empty if several networks are trained at once."""
        outputs = self.outputs(run)
        return {} if outputs is None or self.part is None else calibration_scores(*outputs, self.part.sample_weight)

    def outputs(self, run: Run) -> tuple[Tensor, Tensor] | None:
        """Logits of the current network and labels of the validation part; None if there is no part or one network."""
        return None if self.part is None or run.is_population else evaluated(run, run.live_state, self.part)


def calibration_scores(logits: Any, labels: Any, sample_weight: Any = None) -> dict[str, float]:
    """NLL, accuracy and smooth ECE of logits (n, C), the best temperature, and the NLL with that temperature.

    With ``sample_weight``, one weight per row, all of them are weighted.

    >>> import torch
    >>> scores = calibration_scores(torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]]), torch.tensor([0, 1, 1]))
    >>> [round(scores[name], 3) for name in ("nll", "accuracy", "temperature")]
    [1.351, 0.667, 5.771]
    """
    scores, true_labels = (torch.as_tensor(values, device="cpu").detach() for values in (logits, labels))
    scores = scores.double()
    weights = None if sample_weight is None else torch.as_tensor(sample_weight, device="cpu").detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # early logits may carry no information
        temperature = Temperature().fit(scores.numpy(), true_labels.numpy(), weights)
    calibrated: Tensor = torch.from_numpy(temperature.predict_proba(scores.numpy()))
    return {
        "nll": metrics.nll(scores, true_labels, from_logits=True, sample_weight=weights),
        "accuracy": metrics.accuracy(scores, true_labels, from_logits=True, sample_weight=weights),
        "smooth_ece": metrics.smooth_ece(scores, true_labels, from_logits=True, sample_weight=weights),
        "temperature": float(temperature.temperature_),
        "nll_calibrated": metrics.nll(calibrated, true_labels, sample_weight=weights),
    }


INTERRUPTED = "interrupted"
"""The reason of an interrupted run in ``Solution.reasons``."""


class Resumable(Callback):
    """Save every run of a fit to a folder, and resume a restarted run from its file.

    A method may train several networks one after another. Each has its own file, numbered in the order of training. A
    finished network is loaded and not trained again.

    Parameters
    ----------
    folder : path
    seconds : float
        Time between two checkpoints. The end of a run is always written.
    """

    last = True

    def __init__(self, folder: str | Path, seconds: float = 30.0) -> None:
        if seconds < 0:
            raise ValueError(f"checkpoint_seconds must not be negative; got {seconds}.")
        self.folder, self.seconds = Path(folder), seconds
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"checkpoint must name a folder; got the file {self.folder}. Choose another path.")
        self._number = -1
        self._saved = 0.0

    @property
    def path(self) -> Path:
        """The file of the current run."""
        return self.folder / f"network-{self._number}.safetensors"

    def on_step(self, run: Run) -> None:
        finished = run.step >= run.outer_steps or not bool(run.active.any())
        if any(reason == INTERRUPTED for reason in run.reasons.values()):
            return  # a rerun resumes from the last checkpoint, as if the run had not been interrupted
        if finished or time.monotonic() - self._saved >= self.seconds:
            save_run(self.path, run)
            self._saved = time.monotonic()

    def begin(self, run: Run) -> None:
        """Load the file of a new run, if there is one."""
        self._number += 1
        self._saved = time.monotonic()
        if not self.path.exists():
            return
        try:
            load_run(self.path, run)
        except ValueError as error:
            raise ValueError(f"{error} Delete the folder {self.folder} to start again.") from error

    def on_start(self, run: Run) -> None:
        _ = run.fingerprint  # computed now, while the first batches are still available

    def clear(self) -> None:
        """Remove the files after training has ended."""
        for pattern in ("network-*.safetensors*", ".network-*.part"):  # the second are left by a kill while saving
            for path in self.folder.glob(pattern):
                path.unlink()
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()


class Opening(Callback):
    """The first callback of a run: loads its checkpoint before callbacks with state start."""

    def __init__(self, resumable: Resumable) -> None:
        self.resumable = resumable

    def on_start(self, run: Run) -> None:
        self.resumable.begin(run)


class Interruptible(Callback):
    """Stop training after the current step if Ctrl-C was pressed; a second Ctrl-C raises KeyboardInterrupt.

    Use :meth:`listening` around training. It has no effect outside the main thread, where Python does not handle
    signals.
    """

    def __init__(self) -> None:
        self.pressed = False

    def on_start(self, run: Run) -> None:
        if self.pressed:  # do not train further networks
            run.stop(INTERRUPTED)

    def on_step(self, run: Run) -> None:
        if self.pressed and run.step < run.outer_steps:
            run.stop(INTERRUPTED)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Treat Ctrl-C as a request to stop during training; restore the previous handler afterwards."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or before is not signal.default_int_handler:
            yield
            return

        process = os.getpid()

        def handle(number: int, frame: Any) -> None:
            if self.pressed:
                raise KeyboardInterrupt
            self.pressed = True
            if os.getpid() == process:  # loader workers inherit this handler and continue
                print("Stopping after this step; press Ctrl-C again to give up.", file=sys.stderr, flush=True)

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def tell(self) -> None:
        """Warn if training was interrupted."""
        if self.pressed:
            warn("Training was interrupted. The result is the best state so far, calibrated on the validation data.")


class Progress(ValidationScores):
    """A line about the run, with the remaining time: written over on a terminal, elsewhere a new one every few seconds.

    It shows the epoch, the training loss and the validation loss. With validation data, that of a single network is
    computed again only while this takes less than a tenth of the time; otherwise it is the outer loss of the last step.
    """

    def __init__(self, description: str = "training") -> None:
        self.description = description

    def on_start(self, run: Run) -> None:
        self._terminal = sys.stderr.isatty()
        self._begin = self._shown = time.perf_counter()
        self._first, self._validated, self._again = run.step, "", 0.0

    def on_step(self, run: Run) -> None:
        now, end = time.perf_counter(), run.step >= run.outer_steps or not bool(run.active.any())
        if now - self._shown < (0.2 if self._terminal else 5.0) and not end:
            return
        self._shown = now
        left = (now - self._begin) * (run.outer_steps - run.step) / max(1, run.step - self._first)
        share = run.step / run.outer_steps
        time_left = "done" if end else f"about {left:.0f} s left"
        line = f"{self.description} {share:.0%}, {time_left},{self._losses(run)}"
        if self._terminal:
            line = f"\r{line:<110}"
        print(line, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def on_end(self, run: Run) -> None:
        if self._terminal:
            print(file=sys.stderr)

    def _losses(self, run: Run) -> str:
        batches, steps = run.problem.train.batches, run.hypergradient.steps
        epochs = max(1, round(run.outer_steps * steps / batches))  # a run ends after a whole outer step
        epoch = min(epochs, -(-run.step * steps // batches))
        begin = time.perf_counter()
        if begin >= self._again:
            with generators_restored(run.phi):
                outputs = self.outputs(run)
            validation: Any = None if run.outer_loss is None else run.outer_loss.nanmean().item()
            if outputs is not None and self.part is not None:
                validation = nll(*outputs, from_logits=True, sample_weight=self.part.sample_weight)
            if validation is not None:
                self._validated = f", validation loss {validation:.4f}"
            now = time.perf_counter()
            self._again = now + 10 * (now - begin)
        members = f", {int(run.active.sum())} of {len(run.active)} networks" if run.is_population else ""
        loss = run.inner_losses.nanmean().item()
        return f" epoch {epoch} of {epochs}, training loss {loss:.4f}{self._validated}{members}"
