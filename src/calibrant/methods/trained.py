"""The result of :func:`calibrant.fit`: a calibrated classifier built from your own networks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from calibrant._inputs import shareable
from calibrant._warnings import warn
from calibrant.bilevel import Solution
from calibrant.data.batch import as_dtype, map_tensors, tensors_of
from calibrant.data.items import LABELS, arguments, named, selected, takes_mapping
from calibrant.data.streams import as_array
from calibrant.methods.checks import processing
from calibrant.methods.fitted import Fitted
from calibrant.methods.loaded import is_loader
from calibrant.methods.plain_modules import Form, plain_module, temperature_of
from calibrant.models.functional.network import accepted_names, call, logits_of, positional_names
from calibrant.models.functional.user_modules import leading_parameter

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
        """Write the classifier to one file for :meth:`load`. The file does not contain the class of the network."""
        from calibrant.methods.saved import save_trained

        save_trained(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module) -> Trained:
        """Load a file that :meth:`save` wrote. ``model`` is a network of the same class and sizes; it is copied."""
        from calibrant.methods.saved import load_trained

        return load_trained(path, model)

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
        found = []
        for piece in self._pieces(inputs):
            with processing(piece, "the inputs"):
                found.append(predict(piece))
        return torch.cat(found)

    def _pieces(self, inputs: Any) -> Iterator[Any]:
        """Inputs in the form that the network accepts: a few thousand samples at a time, or the batches of a loader."""
        inputs = as_array(inputs)
        if is_loader(inputs):
            _warn_if_shuffled(inputs)
            found = False
            for item in inputs:
                found = True
                yield self._inputs_of(item)
            if not found:
                raise ValueError("The loader must yield at least one batch; got none, so there is nothing to predict.")
            return
        given = as_arrays(self._named(inputs))
        if not tensors_of(given):
            raise TypeError(
                "inputs must be a tensor, an array, a mapping or tuple of them, or a loader; got a "
                f"{type(inputs).__name__}."
            )
        for start in range(0, max(len(tensors_of(given)[0]), 1), ROWS):
            rows = slice(start, start + ROWS)
            yield map_tensors(itemgetter(rows), given)

    def _named(self, inputs: Any) -> Any:
        several = isinstance(inputs, tuple | list)
        return arguments(inputs, positional_names(self.modules[0])[0]) if several else inputs

    def _inputs_of(self, item: Any) -> Any:
        """The inputs of one batch, with or without labels."""
        if isinstance(item, Mapping):
            if "inputs" in item:
                return item["inputs"]
            names, whole = accepted_names(self.modules[0]), takes_mapping(*positional_names(self.modules[0]))
            return selected(item, (*LABELS, "index"), names, whole) or selected(item, ("index",), names, whole)
        if not isinstance(item, tuple | list):
            return item
        inputs = item[0]
        positions, needed = positional_names(self.modules[0])
        if isinstance(inputs, tuple | list):
            return arguments(inputs, positions)
        if needed > 1 and len(item) >= needed:
            return named(item[:needed], positions)
        return inputs


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


def _warn_if_shuffled(loader: Any) -> None:
    if isinstance(loader, DataLoader) and isinstance(loader.sampler, RandomSampler):
        warn(
            "The loader shuffles, so the order of the predictions is random and cannot be recovered. "
            "Predict with shuffle=False."
        )
