"""Fingerprints: the settings and data of a run as plain values, so that a checkpoint is resumed with the same ones.

Settings are compared by value. A schedule is a function, so it is compared by its rates at some steps. Data is compared
by its shape and by a weighted sum of some of its entries, up to rounding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from calibrant.bilevel.optimizers import Optimizer
from calibrant.data.batch import tensors_of
from calibrant.data.loaders import LoaderStream
from calibrant.data.members import MemberStream
from calibrant.data.streams import Stream, TensorStream

if TYPE_CHECKING:
    from calibrant.bilevel.run import Run

Settings = dict[str, Any]

_PROBED_STEPS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_ENTRIES = 4096
"""The number of entries of a tensor that are compared, evenly spaced."""


def fingerprint(run: Run) -> Settings:
    """The settings and data of a run by dotted names. Call it before the first batches are released."""
    problem = run.problem
    members: list[Any] = getattr(problem, "problems", [problem])
    found: Settings = {
        "restart": run.restart,
        "clip_norm": run.clip_norm,
        "first_move": run.first_move,
        "outer_mode": members[0].outer_mode,
        "autocast": str(members[0].autocast),
        "seed": [member.seed for member in members],
        **_optimizer("inner_optimizer", run.dynamics.optimizer),
        **_optimizer("outer_optimizer", run.outer_optimizer),
    }
    for name, stream in (("train", problem.train), ("val", problem.val)):
        streams = stream.streams if isinstance(stream, MemberStream) else [stream]
        described = [_stream(own) for own in streams if own is not None]
        found |= {f"{name}.{key}": [own.get(key) for own in described] for own in described[:1] for key in own}
    return found


def differences(there: Settings, here: Settings) -> list[str]:
    """The differences between the fingerprint in a file, ``there``, and that of this run, as parts of a sentence."""
    names = [name for name in here | there if not _same(there.get(name), here.get(name))]
    return [_difference(name, there.get(name), here.get(name)) for name in names]


def _optimizer(prefix: str, optimizer: Optimizer | None) -> Settings:
    if optimizer is None:
        return {prefix: None}
    found: Settings = {prefix: type(optimizer).__name__}
    for field in dataclasses.fields(optimizer):
        value, name = getattr(optimizer, field.name), f"{prefix}.{field.name}"
        if field.name == "decays":  # follows from the network, weight_decay and decay_on
            continue
        if field.name == "parts":
            for position, (length, part) in enumerate(value):
                found |= {f"{name}.{position}": length, **_optimizer(f"{name}.{position}", part)}
        elif callable(value):
            found[name] = [_rate(value, step) for step in _PROBED_STEPS]
        else:
            found[name] = _value(value)
    return found


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
    found: Settings = {"kind": type(stream).__name__}
    if isinstance(stream, TensorStream):
        found |= {"batch_size": stream.batch_size, "batches": stream.batches, "seed": stream.seed}
        found["augmented"] = stream.augment is not None
        tensors: Any = {"inputs": stream.inputs, "targets": stream.targets, "index": stream.index}
        tensors |= {"weights": stream.sample_weight, "hyper": stream.hyper}
    else:
        if isinstance(stream, LoaderStream):
            size = getattr(stream.loader, "batch_size", None)
            found |= {"batch_size": _value(size), "batches": stream.batches, "seed": stream.seed}
        batch = stream.batch(0)
        tensors = {"inputs": batch.inputs, "targets": batch.targets, "index": batch.index, "hyper": batch.hyper}
    for name, tree in tensors.items():
        found[name] = list(map(_tensor, tensors_of(tree)))
    return found


def _tensor(tensor: Tensor) -> Settings:
    """The shape and dtype, a weighted sum of evenly spaced entries, and the sum of its terms' absolute values."""
    flat = tensor.detach().reshape(-1)
    flat = flat[:: max(1, math.ceil(len(flat) / _ENTRIES))].cpu().double().nan_to_num()
    terms = flat * torch.cos(torch.arange(1, len(flat) + 1, dtype=torch.float64, device="cpu"))
    form = f"shape {tuple(tensor.shape)} ({tensor.dtype})"
    return {"form": form, "sum": float(terms.sum()), "scale": float(terms.abs().sum())}


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a["form"] == b["form"] and abs(a["sum"] - b["sum"]) <= 1e-6 * max(a["scale"], b["scale"])
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return bool(a == b)


def _difference(name: str, there: Any, here: Any) -> str:
    """The first difference, in words."""
    while isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        there, here = next((a, b) for a, b in zip(there, here, strict=True) if not _same(a, b))
    if isinstance(there, dict) and isinstance(here, dict):
        if there["form"] == here["form"]:
            return f"{name} has other values"
        there, here = there["form"], here["form"]
    return f"{name} was {there} and is now {here}"
