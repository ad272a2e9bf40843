"""The one place that turns the name of a device into the device."""

from __future__ import annotations

import re

import torch


def resolve_device(device: str) -> torch.device:
    """Where to compute: ``"auto"`` is a GPU where torch can use one, and the CPU elsewhere."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise ValueError(f'device must be "auto", "cpu" or "cuda" (or one of several GPUs, "cuda:1"); got {device!r}.')
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f'device="{device}" was asked for, and torch sees no GPU: use device="auto" or "cpu".')
    return torch.device(device)
