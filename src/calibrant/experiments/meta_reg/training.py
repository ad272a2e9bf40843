"""One training and the records of all methods that share its network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from calibrant.bilevel import Callback, NonFiniteError, ProgressBar
from calibrant.experiments.common.command import tell_user
from calibrant.experiments.common.keys import Key, own_code
from calibrant.experiments.common.runs import Meter
from calibrant.experiments.meta_reg.curves import EpochCurve
from calibrant.experiments.meta_reg.data import Prepared
from calibrant.experiments.meta_reg.measures import SCORES, measure
from calibrant.experiments.meta_reg.plan import Planned, network_of, trained
from calibrant.experiments.meta_reg.resuming import Resume, TimedCheckpoint, UnusableCheckpoint
from calibrant.methods import Calibrated, Fitted
from calibrant.methods.fitted import Failed
from calibrant.report.results import Record


def train(
    planned: Sequence[Planned],
    prepared: Prepared,
    *,
    device: torch.device,
    folder: Path | None = None,
    seconds: float = 60.0,
    deadline: float | None = None,
    shared: bool = False,
) -> dict[Key, Record]:
    """Train the network of some methods once, and measure each of them.

    Parameters
    ----------
    planned : methods of one seed with the same network: a method and calibrators behind it
    prepared : what they are trained on, on ``device``
    folder : for a checkpoint every ``seconds``, from which an interrupted run goes on; removed at the end. None: none
    shared : other work runs on the device: the time of an epoch is not recorded as one to compare
    deadline : a time by ``time.monotonic`` at which the run is checkpointed and ends with ``OutOfTime``
    """
    key, method = planned[0]
    base = trained(method)
    path = None if folder is None else folder / f"{key.config}.safetensors"
    meter = Meter(device)

    def fit() -> tuple[Fitted, EpochCurve]:
        curve = EpochCurve(prepared.test)
        callbacks: list[Callback] = [curve, ProgressBar(f"{key['method']}, seed {key['seed']}")]
        if path is not None:
            callbacks = [Resume(path), *callbacks, TimedCheckpoint(path, seconds=seconds, deadline=deadline)]
        # Shapes stay the same throughout a run, so that looking for the fastest convolutions pays.
        fast = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True)
        with meter([0]), fast:
            try:
                return base.fit(prepared.task, callbacks=callbacks), curve
            except NonFiniteError as error:
                return Failed(str(error), prepared.task.classes), curve

    try:
        fitted, curve = fit()
    except UnusableCheckpoint as error:
        assert path is not None
        tell_user(f"The run begins anew, because its checkpoint does not fit. {error}")
        path.unlink()
        fitted, curve = fit()
    cost = meter.costs[0]
    epochs = sum(row["seconds"] for row in curve.rows)
    common: dict[str, Any] = {
        # A resumed run has the epochs of its earlier parts in its curve, and not in this process's stop-watch.
        "train_seconds": max(cost.seconds - curve.seconds, epochs),
        "steady_seconds": None if shared else curve.steady_seconds(),
        "peak_memory": cost.peak_memory,
        "train_size": len(prepared.task.train),
        "test_size": len(prepared.test),
        "batch_size": base.recipe.batch_size,  # type: ignore[attr-defined]
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "made_with": own_code("experiments/meta_reg/measures.py"),
        "curve": curve.columns(),
    }
    found: dict[Key, Record] = {}
    for own, wanted in planned:
        begin = time.perf_counter()
        model = network_of(wanted, fitted)
        model = wanted.calibrate(model, prepared.task) if isinstance(wanted, Calibrated) else model
        calibrated = time.perf_counter() - begin
        record: Record = dict(own.fields)
        if fitted.failure:
            record |= dict.fromkeys((*SCORES, "floor")) | {"failure": fitted.failure}
        else:
            begin = time.perf_counter()
            record |= measure(model, wanted, prepared) | {"failure": None}
            record["measure_seconds"] = time.perf_counter() - begin
        found[own] = record | common | {"seconds": common["train_seconds"] + calibrated}
    if path is not None:
        path.unlink(missing_ok=True)
    return found
