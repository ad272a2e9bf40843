"""Export of PyTorch modules to ONNX with PyTorch's exporter: logits, calibration and probabilities."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from calibrant.base.atomic_write import whole_file
from calibrant.base.warning import warn
from calibrant.data.streams.batch import as_dtype, map_tensors
from calibrant.export.graph import require
from calibrant.methods import Trained
from calibrant.methods.fit.trained import as_arrays
from calibrant.models.functional.network import batch_format, call, logits_of
from calibrant.models.functional.user_modules import copied, unwrapped

Variants = dict[tuple[int, int], list[Any]]


class Probabilities(nn.Module):
    """A network's logits, a temperature, and probabilities."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network = copied(network).cpu().eval()
        self.temperature = temperature
        self.dtype = next((p.dtype for p in network.parameters()), torch.float32)
        if torch.finfo(self.dtype).bits < 32:  # runtimes have few operators for these precisions
            self.network, self.dtype = self.network.float(), torch.float32

    def forward(self, inputs: Any) -> Tensor:
        return (logits_of(call(self.network, inputs)).float() / self.temperature).softmax(1)


def write_module(model: nn.Module | Trained, path: str | os.PathLike[str], example: Any, temperature: float) -> None:
    """Write a module with a temperature, or the result of :func:`calibrant.fit`."""
    require()
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise ImportError(
            "Writing a module needs the package onnxscript. Install it with: pip install 'calibrant[onnx]'."
        ) from None
    if example is None:
        raise ValueError("example must be given for a module, as inputs of two rows or more; got None.")
    network = model.module if isinstance(model, Trained) else unwrapped(model)
    probabilities = Probabilities(network, temperature)
    inputs = map_tensors(lambda t: t.cpu(), _inputs(example, network, probabilities.dtype))
    if any(not isinstance(t, Tensor) or t.dim() < 1 or len(t) < 2 for t in pytree.tree_leaves(inputs)):
        raise ValueError(
            "example must hold tensors or arrays of two rows or more; got fewer, which would fix the batch size."
        )
    names = ["input"]
    if isinstance(inputs, Mapping | tuple):
        names = list(inputs) if isinstance(inputs, Mapping) else [f"input_{k}" for k in range(len(inputs))]
    variants = accepted_sizes(probabilities.eval(), inputs)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "model.onnx"
        fixed = _write_free(probabilities, place, names, inputs, variants)
        with whole_file(path) as target:
            target.write_bytes(place.read_bytes())
    if fixed:
        lengths = " and ".join(f"{size} on axis {axis}" for axis, size in fixed)
        warn(
            f"The network accepts inputs of other lengths, but the ONNX file accepts only {lengths}. Pad inputs to the "
            "length of the example."
        )


def accepted_sizes(probabilities: Probabilities, inputs: Any) -> Variants:
    """The axes after the first whose size may change, as (axis, size), each with inputs of two rows and another size.

    Inputs of one size on one axis change together, such as tokens and their mask.
    """
    axes = {(axis, size) for t in pytree.tree_leaves(inputs) for axis, size in enumerate(t.shape) if axis and size > 1}
    variants: Variants = {}
    with torch.no_grad():
        shape = probabilities(map_tensors(lambda t: t[:2], inputs)).shape
        for axis, size in sorted(axes):
            for new_size in {max(2, size // 2), size + 3} - {size}:
                resized = map_tensors(functools.partial(_resized, axis=axis, size=size, new_size=new_size), inputs)
                try:
                    if probabilities(resized).shape == shape:
                        variants.setdefault((axis, size), []).append(resized)
                except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
                    continue
    return variants


def _resized(values: Tensor, axis: int, size: int, new_size: int) -> Tensor:
    if values.dim() <= axis or values.shape[axis] != size:
        return values[:2]
    return values[:2].index_select(axis, torch.arange(new_size, device=values.device) % size)


def _write_free(
    probabilities: Probabilities, place: Path, names: list[str], inputs: Any, variants: Variants
) -> list[tuple[int, int]]:
    """Write the graph for inputs of any size on the axes of ``variants``, and return those that it fixes.

    If the graph and PyTorch disagree about an input of another size, all axes except the first are fixed.
    """
    if variants:
        try:
            _export(probabilities, place, names, inputs, variants)
            fixed = _fixed_axes(place, variants)
            free_inputs = [resized for key, several in variants.items() if key not in fixed for resized in several]
            if all(_agrees(probabilities, place, names, resized) for resized in free_inputs):
                return fixed
        except ValueError:
            pass  # the exporter may succeed with fixed sizes
    _export(probabilities, place, names, inputs, ())
    return list(variants)


def _export(
    probabilities: Probabilities, place: Path, names: list[str], inputs: Any, free: Collection[tuple[int, int]]
) -> None:
    rows = torch.export.Dim("n", min=1)
    any_size = torch.export.Dim.AUTO
    shapes: Any = map_tensors(
        lambda t: {0: rows} | {k: any_size for k, size in enumerate(t.shape) if (k, size) in free},  # type: ignore[arg-type,return-value]
        inputs,
    )
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecation warnings of the exporter itself
            torch.onnx.export(
                probabilities,
                (),
                str(place),
                kwargs={"inputs": inputs},
                input_names=names,
                output_names=["probabilities"],
                dynamic_shapes={"inputs": shapes},
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(
            f"PyTorch's exporter cannot write this network: {reason[:300]}. Use layers that torch.onnx.export supports."
        ) from error
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
    _check_rows(place)


def _fixed_axes(place: Path, axes: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    import onnx

    sizes = [list(value.type.tensor_type.shape.dim) for value in onnx.load(place).graph.input]
    fixed = {(axis, dim.dim_value) for dims in sizes for axis, dim in enumerate(dims) if not dim.dim_param}
    return [key for key in axes if key in fixed]


def _agrees(probabilities: Probabilities, place: Path, names: list[str], inputs: Any) -> bool:
    """Whether the written graph gives the probabilities of PyTorch."""
    from onnx.reference import ReferenceEvaluator

    feed = dict(zip(names, (t.numpy() for t in pytree.tree_leaves(inputs)), strict=True))
    with torch.no_grad():
        expected = probabilities(inputs).numpy()
    try:
        outputs: Any = ReferenceEvaluator(str(place)).run(None, feed)
    except Exception:  # an operator of any kind that does not take this size
        return False
    probs = outputs[0]
    return probs.shape == expected.shape and np.allclose(probs, expected, rtol=0, atol=1e-3)


def _inputs(example: Any, network: nn.Module, dtype: torch.dtype) -> Any:
    """The example as tensors in the network's precision; several inputs by name."""
    if isinstance(example, tuple | list):
        example = batch_format(network).arguments(example)
    return as_dtype(as_arrays(example), dtype)


def _check_rows(path: Path) -> None:
    """Raise an error if the written graph accepts only as many rows as the example has."""
    import onnx

    for graph_input in onnx.load(path).graph.input:
        rows = graph_input.type.tensor_type.shape.dim[0]
        if not rows.dim_param:
            raise ValueError(
                f"PyTorch's exporter fixed the number of rows of {graph_input.name!r} at {rows.dim_value}. The network "
                "probably uses len(x), which is a constant for the exporter; use x.shape[0]."
            )
