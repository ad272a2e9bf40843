"""Saving and loading of your own trained networks, in the format of :mod:`calibrant._files`.

The class of the network is not in the file. To load a file, pass a network of that class; loading executes no code from
the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._files import Arrays, Format, pack, unpack
from calibrant.bilevel import LogitMap
from calibrant.methods.confidence_map import Mapped
from calibrant.methods.fitted import Fitted, Mixture, Recalibrated
from calibrant.methods.plain_modules import Form
from calibrant.methods.trained import Calculated, Trained
from calibrant.models.functional.user_modules import check_module, copied, unwrapped
from calibrant.posthoc.persistence import build_calibrator, calibrator_parts

KIND, WITH_MAP = "Trained", "TrainedWithMap"
"""The kind of a file. A map has a kind of its own, so that a calibrant that does not know maps refuses the file."""
FORMAT = Format("network", {KIND: Trained, WITH_MAP: Trained}, "the save method of calibrant.fit's result")
_WIDE = {torch.bfloat16: torch.float32}
"""Dtypes that numpy does not have, and the dtypes that represent their values exactly."""


def save_trained(trained: Trained, path: str | os.PathLike[str]) -> None:
    """Write a classifier to one file. From ``extras``, numbers, text, arrays and tensors are saved."""
    arrays: Arrays = {}
    for number, module in enumerate(trained.modules):
        for name, value in module.state_dict().items():
            if not isinstance(value, Tensor):
                raise ValueError(
                    f"All entries of the network's state_dict must be tensors to be saved; got {name!r}, which is not."
                )
            arrays[f"network.{number}.{name}"] = _array(value)
    fitted: Fitted = trained.fitted
    calibrator = learned = None
    map_first = isinstance(fitted, Recalibrated) and isinstance(fitted.model, Mapped)
    while isinstance(fitted, Recalibrated | Mapped):
        if isinstance(fitted, Recalibrated) and calibrator is None:
            calibrator = calibrator_parts(fitted.calibrator, "calibrator", arrays)
        elif isinstance(fitted, Mapped) and learned is None:
            learned = _map_parts(fitted.map, arrays)
        else:
            break
        fitted = fitted.model
    if not isinstance(fitted, Mixture):
        raise TypeError(
            "save needs networks and their means, with one calibrator and one confidence map; got a "
            f"{type(trained.fitted).__name__} of a {type(fitted).__name__}."
        )
    FORMAT.write(
        path,
        KIND if learned is None else WITH_MAP,
        arrays,
        networks=len(trained.modules),
        form=list(trained.form[:3]),
        n_classes=trained.form.n_classes,
        map=learned,
        map_first=map_first,
        state=pack(fitted.link, "state", arrays),
        calibrator=calibrator,
        extras=_packed(trained.extras, "extras", arrays),
    )


def load_trained(path: str | os.PathLike[str], model: nn.Module) -> Trained:
    """Load a file that :func:`save_trained` wrote into copies of ``model``."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module of the class that was trained; got a {type(model).__name__}.")
    check_module(unwrapped(model))
    found: list[tuple[dict[str, Any], Arrays]] = []
    FORMAT.read(path, lambda kind, header, arrays: found.append((header, arrays)))
    header, arrays = found[0]
    if type(header.get("networks")) is not int or header["networks"] < 1:
        raise ValueError(f"{path} is damaged: it does not say how many networks it holds. Save it again.")
    modules = tuple(_module(model, arrays, number, path) for number in range(header["networks"]))

    def build(kind: type, header: dict[str, Any], arrays: Arrays) -> Trained:
        extras = {name: _tensors(unpack(tree, arrays)) for name, tree in header["extras"].items()}
        mean = Mixture.of_link(tuple(map(Calculated, modules)), **unpack(header["state"], arrays))
        steps: list[Callable[[Fitted], Fitted]] = []
        if header["calibrator"] is not None:
            calibrator = build_calibrator(header["calibrator"], arrays)
            steps.append(lambda model: Recalibrated(model, calibrator))
        if header["map"] is not None:
            learned = _build_map(header["map"], arrays)
            steps.append(lambda model: Mapped(model, learned))
        fitted: Fitted = mean
        for step in reversed(steps) if header["map_first"] else steps:
            fitted = step(fitted)
        head, names, output = header["form"]
        form = Form(head, None if names is None else tuple(names), output, header["n_classes"])
        return Trained(replace(fitted, extras=extras), modules, form)  # type: ignore[type-var]

    trained: Trained = FORMAT.read(path, build)
    return trained


def _map_parts(given: nn.Module, arrays: Arrays) -> dict[str, Any]:
    """The settings of a confidence map; its parameters go to ``arrays``."""
    if not isinstance(given, LogitMap):
        raise TypeError(f"save needs maps of the class LogitMap; got a {type(given).__name__}.")
    arrays |= {f"map.{name}": _array(value) for name, value in given.named_parameters()}
    return {"hidden": given.hidden, "largest": given.largest}


def _build_map(parts: dict[str, Any], arrays: Arrays) -> LogitMap:
    if parts["hidden"] != len(arrays["map.second"]):
        raise ValueError("the confidence map has another number of units than its arrays")
    found = LogitMap(parts["hidden"], largest=parts["largest"]).double()
    found.load_state_dict({name: torch.from_numpy(arrays[f"map.{name}"]) for name, _ in found.named_parameters()})
    return found.requires_grad_(False)


def _module(model: nn.Module, arrays: Arrays, number: int, path: str | os.PathLike[str]) -> nn.Module:
    """A copy of the network with the parameters and buffers of one network in the file."""
    prefix = f"network.{number}."
    values = {k.removeprefix(prefix): torch.from_numpy(v) for k, v in arrays.items() if k.startswith(prefix)}
    twin = copied(unwrapped(model))
    try:
        twin.load_state_dict(values)
    except RuntimeError as error:
        told = " ".join(str(error).split())
        raise ValueError(
            f"{path} holds a network of another class or other sizes than the given {type(model).__name__}: {told}. "
            "Give the network that was saved."
        ) from None
    return twin.eval()


def _array(value: Tensor) -> np.ndarray:
    value = value.detach().cpu()
    return np.array(value.to(_WIDE.get(value.dtype, value.dtype)).numpy())


def _packed(extras: dict[str, Any], key: str, arrays: Arrays) -> dict[str, Any]:
    """The extras that can be saved; all others are left out."""
    found = {}
    for name, value in extras.items():
        own: Arrays = {}
        try:
            tree = pack(_arrays(value), f"{key}.{name}", own)
        except ValueError:
            continue
        arrays |= own
        found[name] = tree
    return found


def _arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _array(value)
    return {name: _arrays(own) for name, own in value.items()} if isinstance(value, dict) else value


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(value)
    return {name: _tensors(own) for name, own in value.items()} if isinstance(value, dict) else value
