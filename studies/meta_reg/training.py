"""Train one network, and make the records of all methods that share it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.bilevel import Callback, NonFiniteError
from calibrant.methods import Calibrated, Fitted
from calibrant.methods.confidence import Mapped
from calibrant.methods.core.results import Failed
from calibrant.methods.fit.guards import Interruptible
from calibrant.report.results import Record
from studies.common.keys import Key
from studies.common.runs import Meter, progress
from studies.common.study import tell_user
from studies.meta_reg.curves import EpochCurve
from studies.meta_reg.data import PreparedImages
from studies.meta_reg.measures import SCORES, logits, measure
from studies.meta_reg.plan import Planned, network_of, trained
from studies.meta_reg.resuming import Resume, TimedCheckpoint, UnusableCheckpoint


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
