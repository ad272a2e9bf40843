"""Checkpoints: a run in one file, tensors as safetensors and the rest as JSON in its header, with a checksum.

Loading never executes code. A file with a changed byte is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import Tensor

from calibrant._container import check, read_arrays, read_bytes, read_content, write_container
from calibrant.bilevel.dynamics import State
from calibrant.bilevel.fingerprint import differences

if TYPE_CHECKING:
    from calibrant.bilevel.run import Run

FORMAT = "calibrant-run-3"


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
        "stop_steps": run.stop_steps,
        "callbacks": [],
    }
    for position, callback in enumerate(run.callbacks):
        kept = callback.state_dict()
        tensors |= {f"callback.{position}.{k}": v for k, v in kept.items() if isinstance(v, Tensor)}
        plain["callbacks"].append(
            {
                "type": type(callback).__name__,
                "plain": {k: v for k, v in kept.items() if not isinstance(v, Tensor)},
            }
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
    here = {name: _form(t) for name, t in _tensors(run).items() if not name.startswith("extra.")}
    there = {name: _form(t) for name, t in tensors.items() if not name.startswith(("callback.", "extra."))}
    for name in here | there:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"{path} has {there.get(name, 'nothing')} for {name}, but this run has {here.get(name, 'nothing')}. "
                "Resume with the problem and the optimisers of the first run."
            )
    if found := differences(plain["fingerprint"], run.fingerprint):
        raise ValueError(
            f"{path} was written by a run with other settings or data: {'; '.join(found)}. Resume with those of the "
            "first run."
        )
    run.state = State(tensors["params"], _numbered(tensors, "moment."), _named(tensors, "buffer."), plain["inner_step"])
    run.phi, run.outer_moments = tensors["phi"], _numbered(tensors, "outer_moment.")
    run.active, run.step = tensors["active"].cpu(), plain["step"]
    run.load_extra_tensors(_named(tensors, "extra."))
    for name in ("reasons", "failures", "stop_steps"):
        setattr(run, name, {int(k): v for k, v in plain[name].items()})
    saved, own = [c["type"] for c in plain["callbacks"]], [type(c).__name__ for c in run.callbacks]
    if saved != own:
        raise ValueError(
            f"{path} was written by a run with callbacks {saved}, but this run has {own}. Give the same callbacks."
        )
    for position, (callback, kept) in enumerate(zip(run.callbacks, plain["callbacks"], strict=True)):
        callback.load_state_dict(kept["plain"] | _named(tensors, f"callback.{position}."))
    ties = run.problem.ties
    if ties is not None and not ties.equal(run.phi):
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
        "params": run.state.params,
        "phi": run.phi,
        "active": run.active,
        **{f"moment.{k}": m for k, m in enumerate(run.state.moments)},
        **{f"outer_moment.{k}": m for k, m in enumerate(run.outer_moments)},
        **{f"buffer.{k}": b for k, b in run.state.buffers.items()},
        **{f"extra.{k}": t for k, t in run.extra_tensors().items()},
    }


def _form(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)} ({tensor.dtype})"


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def _numbered(tensors: dict[str, Tensor], prefix: str) -> tuple[Tensor, ...]:
    named = _named(tensors, prefix)
    return tuple(named[str(k)] for k in range(len(named)))
