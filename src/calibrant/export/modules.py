"""Export of PyTorch modules to ONNX with PyTorch's exporter: logits, calibration and probabilities."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from calibrant._whole import whole_file
from calibrant.data.batch import as_dtype, map_tensors
from calibrant.data.items import arguments
from calibrant.export.graph import require
from calibrant.methods import Trained
from calibrant.methods.trained import as_arrays
from calibrant.models.given import copied, unwrapped
from calibrant.models.outputs import call, logits_of, positional_names


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
    whole = Probabilities(network, temperature)
    inputs = map_tensors(lambda t: t.cpu(), _inputs(example, network, whole.dtype))
    if any(not isinstance(t, Tensor) or t.dim() < 1 or len(t) < 2 for t in pytree.tree_leaves(inputs)):
        raise ValueError(
            "example must hold tensors or arrays of two rows or more; got fewer, which would fix the batch size."
        )
    batch = torch.export.Dim("n", min=1)
    names, shapes = ["input"], map_tensors(lambda _: {0: batch}, inputs)  # type: ignore[arg-type,return-value]
    if isinstance(inputs, Mapping | tuple):
        names = list(inputs) if isinstance(inputs, Mapping) else [f"input_{k}" for k in range(len(inputs))]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation warnings of the exporter itself
        place = Path(folder) / "model.onnx"
        level = logging.getLogger("torch.onnx").level
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        try:
            torch.onnx.export(
                whole.eval(),
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
                f"PyTorch's exporter cannot write this network: {reason[:300]}. Use layers that torch.onnx.export "
                "supports."
            ) from error
        finally:
            logging.getLogger("torch.onnx").setLevel(level)
        _check_rows(place)
        with whole_file(path) as target:
            target.write_bytes(place.read_bytes())


def _inputs(example: Any, network: nn.Module, dtype: torch.dtype) -> Any:
    """The example as tensors in the network's precision; several inputs by name."""
    if isinstance(example, tuple | list):
        example = arguments(example, positional_names(network)[0])
    return as_dtype(as_arrays(example), dtype)


def _check_rows(path: Path) -> None:
    """Raise an error if the written graph accepts only as many rows as the example has."""
    import onnx

    for given in onnx.load(path).graph.input:
        rows = given.type.tensor_type.shape.dim[0]
        if not rows.dim_param:
            raise ValueError(
                f"PyTorch's exporter fixed the number of rows of {given.name!r} at {rows.dim_value}. The network "
                "probably uses len(x), which is a constant for the exporter; use x.shape[0]."
            )
