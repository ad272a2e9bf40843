"""Checkpoints: a run in one file, and the settings and data with which it may be resumed.

Fingerprints: the settings and data of a run as plain values, so that a checkpoint is resumed with the same ones.
Settings are compared by value. A schedule is a function, so it is compared by its rates at some steps. Data is compared
by its shape and by a weighted sum of some of its entries, up to rounding.

Checkpoints: a run in one file, tensors as safetensors and the rest as JSON in its header, with a checksum. Loading
never executes code. A file with a changed byte is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from calibrant.base.files import check, read_arrays, read_bytes, read_content, write_container
from calibrant.bilevel.gradients.dynamics import State, named
from calibrant.bilevel.optimizers.base import Optimizer
from calibrant.data.streams.batch import tensors_of
from calibrant.data.streams.loaders import LoaderStream
from calibrant.data.streams.streams import Stream, TensorStream

if TYPE_CHECKING:
    from calibrant.bilevel.running.run import Run


Settings = dict[str, Any]

_PROBED_STEPS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_ENTRIES = 4096
"""The number of entries of a tensor that are compared, evenly spaced."""


def fingerprint(run: Run) -> Settings:
    """The settings and data of a run by dotted names. Call it before the first batches are released."""
    members = run.problem.problems
    settings: Settings = {
        "restart": run.restart,
        "clip_norm": run.clip_norm,
        "first_move": run.first_move,
        "autocast": str(members[0].autocast),
        "seed": [member.seed for member in members],
        **_optimizer("inner_optimizer", run.dynamics.optimizer),
        **_optimizer("outer_optimizer", run.outer_optimizer),
    }
    for name in ("train", "val"):
        streams = [getattr(member, name) for member in members]
        described = [_stream(stream) for stream in streams if stream is not None]
        for key in described[0] if described else ():
            settings[f"{name}.{key}"] = [description.get(key) for description in described]
    return settings


def differences(there: Settings, here: Settings) -> list[str]:
    """The differences between the fingerprint in a file, ``there``, and that of this run, as parts of a sentence."""
    return [text for name in here | there for text in _differences(name, there.get(name), here.get(name))]


def _differences(name: str, there: Any, here: Any) -> list[str]:
    """The first difference between two settings, if there is one."""
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        return next(filter(None, (_differences(name, a, b) for a, b in zip(there, here, strict=True))), [])
    if isinstance(there, dict) and isinstance(here, dict):
        if there["form"] != here["form"]:
            return [f"{name} was {there['form']} and is now {here['form']}"]
        near = abs(there["sum"] - here["sum"]) <= 1e-6 * max(there["scale"], here["scale"])
        return [] if near else [f"{name} has other values"]
    numbers = isinstance(there, float) and isinstance(here, float)
    same = math.isclose(there, here, rel_tol=1e-9) if numbers else there == here
    return [] if same else [f"{name} was {there} and is now {here}"]


def _optimizer(prefix: str, optimizer: Optimizer | None) -> Settings:
    if optimizer is None:
        return {prefix: None}
    settings: Settings = {prefix: type(optimizer).__name__}
    for field in dataclasses.fields(optimizer):
        value, name = getattr(optimizer, field.name), f"{prefix}.{field.name}"
        if field.name == "decays":  # follows from the network, weight_decay and decay_on
            continue
        if field.name == "parts":
            for position, (length, part) in enumerate(value):
                settings |= {f"{name}.{position}": length, **_optimizer(f"{name}.{position}", part)}
        elif callable(value):
            settings[name] = [_rate(value, step) for step in _PROBED_STEPS]
        else:
            settings[name] = _value(value)
    return settings


def _rate(schedule: Callable[[int], Any], step: int) -> Any:
    """A schedule's value, or None after its end."""
    try:
        return _value(schedule(step))
    except (ValueError, IndexError, KeyError):
        return None


def _value(value: Any) -> Any:
    """A setting as a JSON value. A setting without a plain value is represented by the name of its type."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_value(part) for part in value]
    return value if isinstance(value, bool | int | float | str | None) else type(value).__name__


def _stream(stream: Stream) -> Settings:
    settings: Settings = {"kind": type(stream).__name__}
    if isinstance(stream, TensorStream):
        settings |= {"batch_size": stream.batch_size, "batches": stream.batches, "seed": stream.seed}
        settings["augmented"] = stream.augment is not None
        tensors: Any = {"inputs": stream.inputs, "targets": stream.targets, "index": stream.index}
        tensors |= {"weights": stream.sample_weight, "hyper": stream.hyper}
    else:
        if isinstance(stream, LoaderStream):
            size = getattr(stream.loader, "batch_size", None)
            settings |= {"batch_size": _value(size), "batches": stream.batches, "seed": stream.seed}
        batch = stream.batch(0)
        tensors = {"inputs": batch.inputs, "targets": batch.targets, "index": batch.index, "hyper": batch.hyper}
    for name, tree in tensors.items():
        settings[name] = list(map(_tensor, tensors_of(tree)))
    return settings


def _tensor(tensor: Tensor) -> Settings:
    """The shape and dtype, a weighted sum of evenly spaced entries, and the sum of its terms' absolute values."""
    flat = tensor.detach().reshape(-1)
    flat = flat[:: max(1, math.ceil(len(flat) / _ENTRIES))].cpu().double().nan_to_num()
    terms = flat * torch.cos(torch.arange(1, len(flat) + 1, dtype=torch.float64, device="cpu"))
    return {"form": _form(tensor), "sum": float(terms.sum()), "scale": float(terms.abs().sum())}


FORMAT = "calibrant-run-4"


def save_run(path: str | Path, run: Run) -> None:
    """Write ``run`` and the state of its callbacks to ``path``."""
    run.look()
    tensors = _tensors(run)
    plain: dict[str, Any] = {
        "step": run.step,
        "inner_step": run.state.step,
        "hypergradient": repr(run.hypergradient),
        "fingerprint": run.fingerprint,
        "members": run.problem.members,
        "reasons": run.reasons,
        "failures": run.failures,
        "callbacks": [],
    }
    for position, callback in enumerate(run.callbacks):
        kept = callback.state_dict()
        tensors |= {f"callback.{position}.{k}": v for k, v in kept.items() if isinstance(v, Tensor)}
        plain["callbacks"].append(
            {"type": type(callback).__name__, "plain": {k: v for k, v in kept.items() if not isinstance(v, Tensor)}}
        )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_container(path, json.dumps({"format": FORMAT, "run": plain}), tensors)


def load_run(path: str | Path, run: Run) -> None:
    """Restore a saved run into ``run``, which must be new and have the same problem and settings."""
    plain, tensors = _read(path)
    tensors = {name: tensor.to(run.phi.device) for name, tensor in tensors.items()}
    saved_with = plain["hypergradient"]
    if saved_with != repr(run.hypergradient):
        raise ValueError(
            f"{path} was written with hypergradient {saved_with}, but this run uses {run.hypergradient!r}. Resume with "
            "the settings of the first run."
        )
    run_forms = {name: _form(t) for name, t in _tensors(run).items() if not name.startswith("features.")}
    saved_forms = {name: _form(t) for name, t in tensors.items() if not name.startswith(("callback.", "features."))}
    for name in run_forms | saved_forms:
        if run_forms.get(name) != saved_forms.get(name):
            raise ValueError(
                f"{path} has {saved_forms.get(name, 'nothing')} for {name}, but this run has "
                f"{run_forms.get(name, 'nothing')}. Resume with the problem and the optimisers of the first run."
            )
    if changes := differences(plain["fingerprint"], run.fingerprint):
        raise ValueError(
            f"{path} was written by a run with other settings or data: {'; '.join(changes)}. Resume with those of the "
            "first run."
        )
    outer = named(tensors, "outer_moment.")
    run.state = State.of(tensors, plain["inner_step"])
    run.phi, run.outer_moments = tensors["phi"], tuple(outer[str(k)] for k in range(len(outer)))
    run.active, run.step = tensors["active"].cpu(), plain["step"]
    features = named(tensors, "features.")
    if features:
        run.head.memory.restore(features, run.problem.train_batch(run.step * run.hypergradient.steps))
    for name in ("reasons", "failures"):
        setattr(run, name, {int(k): v for k, v in plain[name].items()})
    saved_callbacks, run_callbacks = [c["type"] for c in plain["callbacks"]], [type(c).__name__ for c in run.callbacks]
    if saved_callbacks != run_callbacks:
        raise ValueError(
            f"{path} was written by a run with callbacks {saved_callbacks}, but this run has {run_callbacks}. "
            "Give the same callbacks."
        )
    for position, (callback, kept) in enumerate(zip(run.callbacks, plain["callbacks"], strict=True)):
        callback.load_state_dict(kept["plain"] | named(tensors, f"callback.{position}."))
    shared_phi = run.problem.shared_phi
    if shared_phi is not None and not shared_phi.equal(run.phi):
        raise ValueError(f"{path} was written by a run whose members were tied in other groups. Give the same groups.")


def _read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON part and the tensors of a checkpoint. A ValueError says what is wrong with a file."""
    raw = read_bytes(path)
    try:
        content = read_content(raw)
    except SafetensorError as error:
        raise ValueError(
            f"{path} is not a Calibrant checkpoint, or was cut off: {error}. Give a file that the callback Checkpoint "
            "wrote."
        ) from None
    file_format = content.get("format") if isinstance(content, dict) else None
    if file_format != FORMAT:
        raise ValueError(f"The format of {path} must be {FORMAT!r}; got {file_format!r}.")
    try:
        check(raw)
    except ValueError as error:
        raise ValueError(f"The checkpoint {path} is damaged: {error}. Start the run again without it.") from None
    return content["run"], read_arrays(raw, tensors=True)


def _tensors(run: Run) -> dict[str, Tensor]:
    return {
        **run.state.tensors(),
        "phi": run.phi,
        "active": run.active,
        **{f"outer_moment.{k}": m for k, m in enumerate(run.outer_moments)},
        **{f"features.{k}": t for k, t in run.head.memory.tensors().items()},
    }


def _form(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)} ({tensor.dtype})"
