"""Export of PyTorch modules to ONNX with PyTorch's exporter: logits, calibration and probabilities."""

from __future__ import annotations

import copy
import logging
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant._whole import whole_file
from calibrant.data.batch import map_tensors
from calibrant.export.graph import require
from calibrant.methods import Trained
from calibrant.models.outputs import call, logits_of


class Probabilities(nn.Module):
    """A network's logits, a temperature, and probabilities."""

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).cpu().eval()
        self.temperature = temperature

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
    inputs = map_tensors(lambda t: t.cpu(), _tensors(example))
    first = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs
    if not isinstance(first, Tensor) or first.dim() < 1 or len(first) < 2:
        raise ValueError(
            "example must hold tensors or arrays of two rows or more; got fewer, which would fix the batch size."
        )
    whole = Probabilities(model.module if isinstance(model, Trained) else model, temperature)
    names = list(inputs) if isinstance(inputs, Mapping) else ["input"]
    batch = torch.export.Dim("n", min=1)
    shapes = {name: {0: batch} for name in inputs} if isinstance(inputs, Mapping) else {0: batch}
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
        with whole_file(path) as target:
            target.write_bytes(place.read_bytes())


def _tensors(example: Any) -> Any:
    if isinstance(example, Mapping):
        return {name: _tensors(value) for name, value in example.items()}
    return torch.as_tensor(example) if isinstance(example, np.ndarray) else example
