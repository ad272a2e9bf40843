"""The result of :func:`calibrant.fit`: a calibrated classifier built from your own networks, saved and loaded.

Saving and loading of your own trained networks, in the format of :mod:`calibrant.base.files`. The class of the network
is not in the file. To load a file, pass a network of that class; loading executes no code from the file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from calibrant.base.files import Arrays, Format, pack, unpack
from calibrant.base.inputs import shareable
from calibrant.base.warning import warn
from calibrant.bilevel import LogitMap, Solution
from calibrant.data.streams.batch import as_dtype, map_tensors, tensors_of
from calibrant.data.streams.streams import as_array
from calibrant.methods.confidence import Mapped
from calibrant.methods.core.results import Fitted, Mixture, Recalibrated
from calibrant.methods.core.samples import is_loader
from calibrant.methods.fit.checks import processing
from calibrant.methods.fit.plain_module import Form, plain_module, temperature_of
from calibrant.models.functional.network import batch_format, call, logits_of
from calibrant.models.functional.user_modules import check_module, copied, leading_parameter, unwrapped
from calibrant.posthoc.persistence import build_calibrator, calibrator_parts

ROWS = 4096
"""Samples per forward pass for inputs in memory."""


@dataclass(frozen=True, repr=False)
class Trained(Fitted):
    """The result of :func:`calibrant.fit`: the classifier, and its networks as modules of the given class.

    ``probs``, ``predict``, ``confidence`` and ``logits`` accept inputs in the form that the network accepts (a tensor,
    an array, a mapping, or a tuple for several arguments), or a loader, whose labels are ignored. :attr:`module` is the
    calibrated classifier as a plain torch module, and ``sample_weights`` holds the learned weight of each training
    sample.
    """

    fitted: Fitted
    modules: tuple[nn.Module, ...]
    """Copies of the given model with the trained parameters and buffers, in evaluation mode; one for each network.
    Their logits are not calibrated; those of :attr:`module` are."""
    form: Form

    def probs(self, inputs: Any) -> Tensor:
        """P(class | input), (n, C), float64 on the CPU. ``inputs`` may be a loader."""
        return self._joined(self.fitted.probs, inputs)

    def logits(self, inputs: Any) -> Tensor:
        """Logits whose softmax is :meth:`probs`, (n, C)."""
        return self._joined(self.fitted.logits, inputs)

    def predict(self, inputs: Any) -> Tensor:
        """The most probable class of each input, (n,): the same as :meth:`classes`."""
        return self.classes(inputs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the classifier to one file for :meth:`load`. The file does not contain the class of the network.

        From ``extras``, numbers, text, arrays and tensors are saved.
        """
        arrays: Arrays = {}
        for number, module in enumerate(self.modules):
            for name, value in module.state_dict().items():
                if not isinstance(value, Tensor):
                    raise ValueError(
                        f"All entries of the network's state_dict must be tensors to be saved; got {name!r}."
                    )
                arrays[f"network.{number}.{name}"] = _array(value)
        fitted, steps = self.fitted, list[Fitted]()
        while isinstance(fitted, Recalibrated | Mapped):
            steps.append(fitted)
            fitted = fitted.model
        maps = [step.map for step in steps if isinstance(step, Mapped)]
        calibrators = [step.calibrator for step in steps if isinstance(step, Recalibrated)]
        if not isinstance(fitted, Mixture) or max(len(maps), len(calibrators)) > 1:
            raise TypeError(
                "save needs networks and their means, with one calibrator and one confidence map; got a "
                f"{type(self.fitted).__name__} of a {type(fitted).__name__}."
            )
        FORMAT.write(
            path,
            WITH_MAP if maps else KIND,
            arrays,
            networks=len(self.modules),
            form=list(self.form[:3]),
            n_classes=self.form.n_classes,
            map=_map_parts(maps[0], arrays) if maps else None,
            map_first=len(steps) == 2 and isinstance(steps[-1], Mapped),
            state=pack(fitted.link, "state", arrays),
            calibrator=calibrator_parts(calibrators[0], "calibrator", arrays) if calibrators else None,
            extras=_packed(self.extras, "extras", arrays),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> Trained:
        """Load a file that :meth:`save` wrote. ``model`` is a network of the same class and sizes; it is copied."""
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module of the class that was trained; got a {type(model).__name__}.")
        check_module(unwrapped(model))
        header, arrays = FORMAT.read(path, lambda kind, header, arrays: (header, arrays))
        if type(header.get("networks")) is not int or header["networks"] < 1:
            raise ValueError(f"{path} is damaged: it does not say how many networks it holds. Save it again.")
        modules = tuple(_module(model, arrays, number, path) for number in range(header["networks"]))

        def build(kind: type, header: dict[str, Any], arrays: Arrays) -> Trained:
            extras = {name: _tensors(unpack(tree, arrays)) for name, tree in header["extras"].items()}
            fitted: Any = Mixture.of_link(tuple(map(Calculated, modules)), **unpack(header["state"], arrays))
            for part in ("map", "calibrator") if header["map_first"] else ("calibrator", "map"):
                if header[part] is not None and part == "map":
                    fitted = Mapped(fitted, _build_map(header["map"], arrays))
                elif header[part] is not None:
                    fitted = Recalibrated(fitted, build_calibrator(header["calibrator"], arrays))
            head, names, output = header["form"]
            form = Form(head, None if names is None else tuple(names), output, header["n_classes"])
            return Trained(replace(fitted, extras=extras), modules, form)

        trained: Trained = FORMAT.read(path, build)
        return trained

    @property
    def extras(self) -> dict[str, Any]:  # type: ignore[override]
        """What the method learned besides the network: ``sample_weights``, ``history``, ``confidence``, …"""
        return self.fitted.extras

    @property
    def failure(self) -> str | None:  # type: ignore[override]
        """Why training failed, or None."""
        return self.fitted.failure

    @property
    def networks(self) -> tuple[Any, ...]:  # type: ignore[override]
        """The trained networks; each has ``logits(inputs)``. :attr:`modules` are the same as torch modules."""
        return self.fitted.networks

    @cached_property
    def module(self) -> nn.Module:
        """The classifier as one plain torch module in evaluation mode; the softmax of its output is :meth:`probs`.

        It does not need calibrant. A single network with a linear head and a temperature keeps the class of your model,
        and its head includes the temperature, so your class can load its ``state_dict()``. Several networks, a network
        with a confidence map, or one without a linear head become a ``torch.fx.GraphModule`` that returns logits.
        """
        return plain_module(self.fitted, self.modules, self.form)

    @property
    def temperature(self) -> float | None:
        """The temperature that calibrates the networks; None if something else does, such as a confidence map."""
        return temperature_of(self.fitted)

    @property
    def solution(self) -> Solution:
        """The engine's solution, for methods that train one network."""
        if len(self.networks) != 1:
            raise ValueError(f"solution needs a single network; got {len(self.networks)}. Use networks instead.")
        return self.networks[0]

    def __repr__(self) -> str:
        temperature = "" if self.temperature is None else f", temperature={self.temperature:.4g}"
        kind = type(self.modules[0]).__name__
        return f"Trained(modules={len(self.modules)} × {kind}, n_classes={self.form.n_classes}{temperature})"

    def _joined(self, predict: Callable[[Any], Tensor], inputs: Any) -> Tensor:
        """Predictions of all pieces of the inputs."""
        outputs = []
        for piece in self._pieces(inputs):
            with processing(piece, "the inputs"):
                outputs.append(predict(piece))
        if not outputs:
            raise ValueError("The loader must yield at least one batch; got none, so there is nothing to predict.")
        return torch.cat(outputs)

    def _pieces(self, inputs: Any) -> Iterator[Any]:
        """Inputs in the form that the network accepts: a few thousand samples at a time, or the batches of a loader."""
        inputs, form = as_array(inputs), batch_format(self.modules[0])
        if is_loader(inputs):
            if isinstance(inputs, DataLoader) and isinstance(inputs.sampler, RandomSampler):
                warn(
                    "The loader shuffles, so the order of the predictions is random and cannot be recovered. "
                    "Predict with shuffle=False."
                )
            yield from map(form.inputs, inputs)
            return
        arrays = as_arrays(form.arguments(inputs) if isinstance(inputs, tuple | list) else inputs)
        if not tensors_of(arrays):
            raise TypeError(
                "inputs must be a tensor, an array, a mapping or tuple of them, or a loader; got a "
                f"{type(inputs).__name__}."
            )
        for start in range(0, max(len(tensors_of(arrays)[0]), 1), ROWS):
            rows = slice(start, start + ROWS)
            yield map_tensors(itemgetter(rows), arrays)


@dataclass(frozen=True)
class Calculated:
    """A trained network that consists only of a module, without the problem it was trained on."""

    module: nn.Module

    @property
    def params(self) -> Tensor:
        """A tensor on the network's device."""
        return leading_parameter(self.module)

    def logits(self, inputs: Any) -> Tensor:
        """Logits, (n, C)."""
        with torch.no_grad():
            return logits_of(call(self.module, as_dtype(inputs, self.params.dtype)))


def as_arrays(inputs: Any) -> Any:
    """Convert arrays among the inputs to tensors."""
    if isinstance(inputs, Mapping):
        return {name: as_arrays(values) for name, values in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(map(as_arrays, inputs))
    return torch.from_numpy(shareable(inputs)) if isinstance(inputs, np.ndarray) else inputs


KIND, WITH_MAP = "Trained", "TrainedWithMap"
"""The kind of a file. A map has a kind of its own, so that a calibrant that does not know maps refuses the file."""
FORMAT = Format("network", {KIND: Trained, WITH_MAP: Trained}, "the save method of calibrant.fit's result")
_WIDE = {torch.bfloat16: torch.float32}
"""Dtypes that numpy does not have, and the dtypes that represent their values exactly."""


def _map_parts(logit_map: LogitMap, arrays: Arrays) -> dict[str, Any]:
    """The settings of a confidence map; its parameters go to ``arrays``."""
    arrays |= {f"map.{name}": _array(value) for name, value in logit_map.named_parameters()}
    return {"hidden": logit_map.hidden, "largest": logit_map.largest}


def _build_map(parts: dict[str, Any], arrays: Arrays) -> LogitMap:
    if parts["hidden"] != len(arrays["map.second"]):
        raise ValueError("the confidence map has another number of units than its arrays")
    mapping = LogitMap(parts["hidden"], largest=parts["largest"]).double()
    mapping.load_state_dict({name: torch.from_numpy(arrays[f"map.{name}"]) for name, _ in mapping.named_parameters()})
    return mapping.requires_grad_(False)


def _module(model: nn.Module, arrays: Arrays, number: int, path: str | os.PathLike[str]) -> nn.Module:
    """A copy of the network with the parameters and buffers of one network in the file."""
    prefix = f"network.{number}."
    values = {k.removeprefix(prefix): torch.from_numpy(v) for k, v in arrays.items() if k.startswith(prefix)}
    twin = copied(unwrapped(model))
    try:
        twin.load_state_dict(values)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{path} holds a network of another class or other sizes than the given {type(model).__name__}: {reason}. "
            "Give the network that was saved."
        ) from None
    return twin.eval()


def _array(value: Tensor) -> np.ndarray:
    value = value.detach().cpu()
    return np.array(value.to(_WIDE.get(value.dtype, value.dtype)).numpy())


def _packed(extras: dict[str, Any], key: str, arrays: Arrays) -> dict[str, Any]:
    """The extras that can be saved; all others are left out."""
    trees = {}
    for name, value in extras.items():
        entry_arrays: Arrays = {}
        with contextlib.suppress(ValueError):
            plain = map_tensors(_array, value)  # type: ignore[arg-type]
            trees[name] = pack(plain, f"{key}.{name}", entry_arrays)
            arrays |= entry_arrays
    return trees


def _tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(value)
    return {name: _tensors(entry) for name, entry in value.items()} if isinstance(value, dict) else value
