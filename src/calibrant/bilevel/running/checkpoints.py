"""Checkpoints: a run in one file, and the settings and data with which it may be resumed.

Fingerprints: the settings and data of a run as plain values, so that a checkpoint is resumed with the same ones.
Settings are compared by value. A schedule is a function, so it is compared by its rates at some steps. Data is compared
by its shape and by a checksum of some of its entries.

Checkpoints: a run in one file, tensors as safetensors and the rest as JSON in its header, with a checksum. Loading
never executes code. A file with a changed byte is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


_PROBED_STEPS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_ENTRIES = 4096
"""The number of entries of a tensor that are compared, evenly spaced."""


Settings = dict[str, list[str]]


def fingerprint(run: Run) -> Settings:
    """The settings and data of a run as texts by dotted names. Call it before the first batches are released."""
    members = run.problem.problems
    settings: dict[str, Any] = {
        "restart": run.restart,
        "clip_norm": run.clip_norm,
        "first_move": run.first_move,
        "autocast": members[0].autocast,
        "seed": [member.seed for member in members],
        **_optimizer("inner_optimizer", run.dynamics.optimizer),
        **_optimizer("outer_optimizer", run.outer_optimizer),
    }
    for name in ("train", "val"):
        described = [_stream(stream) for member in members if (stream := getattr(member, name)) is not None]
        for key in described[0] if described else ():
            values = [description.get(key) for description in described]
            settings[f"{name}.{key}"] = values
    return {name: list(map(str, v if isinstance(v, list | tuple) else [v])) for name, v in settings.items()}


def differences(there: Settings, here: Settings) -> list[str]:
    """The differences between the fingerprint in a file, ``there``, and that of this run, as parts of a sentence."""
    parts = []
    for name in here | there:
        was, now = there.get(name, []), here.get(name, [])
        if was != now:
            pairs = zip(was, now, strict=True) if len(was) == len(now) else [(", ".join(was), ", ".join(now))]
            parts.append(next(f"{name} was {old} and is now {new}" for old, new in pairs if old != new))
    return parts


def _optimizer(prefix: str, optimizer: Optimizer | None) -> dict[str, Any]:
    if optimizer is None:
        return {prefix: None}
    settings: dict[str, Any] = {prefix: type(optimizer).__name__}
    for field in dataclasses.fields(optimizer):
        value, name = getattr(optimizer, field.name), f"{prefix}.{field.name}"
        if field.name == "parts":
            for position, (length, part) in enumerate(value):
                settings |= {f"{name}.{position}": length, **_optimizer(f"{name}.{position}", part)}
        elif field.compare:  # the others follow from the network
            settings[name] = [_rate(value, step) for step in _PROBED_STEPS] if callable(value) else _value(value)
    return settings


def _rate(schedule: Callable[[int], Any], step: int) -> Any:
    """A schedule's value, or None after its end."""
    try:
        return _value(schedule(step))
    except (ValueError, IndexError, KeyError):
        return None


def _value(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def _stream(stream: Stream) -> dict[str, Any]:
    settings: dict[str, Any] = {"kind": type(stream).__name__}
    data: Any = stream if isinstance(stream, TensorStream) else stream.batch(0)
    if isinstance(stream, TensorStream | LoaderStream):
        size = getattr(stream.loader if isinstance(stream, LoaderStream) else stream, "batch_size", None)
        settings |= {"batch_size": size, "batches": stream.batches, "seed": stream.seed}
    if isinstance(stream, TensorStream):
        settings["augmented"] = stream.augment is not None
    for name in ("inputs", "targets", "index", "sample_weight", "hyper"):
        settings[name] = ", ".join(map(_tensor, tensors_of(getattr(data, name))))
    return settings


def _tensor(tensor: Tensor) -> str:
    """The shape and dtype, and a checksum of evenly spaced entries."""
    flat = tensor.detach().reshape(-1)
    entries = flat[:: max(1, math.ceil(len(flat) / _ENTRIES))].cpu().double()
    return f"{_form(tensor)} with checksum {zlib.crc32(entries.numpy().tobytes()):08x}"


FORMAT = "calibrant-run-5"


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
