"""Turn the name of a device into a torch device."""

from __future__ import annotations

import re

import torch


def resolve_device(device: str) -> torch.device:
    """Return the device: ``"auto"`` is a GPU if torch can use one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f'device must be "auto", "cpu", "cuda", or "cuda:1" for one of several GPUs; got {device!r}.')
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f'device must be "auto" or "cpu" because torch sees no GPU; got {device!r}.')
    return torch.device(device)
