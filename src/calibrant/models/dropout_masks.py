"""Dropout masks that are drawn outside the network, as a pure function of a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.data.batch import Tensors
from calibrant.models.pure_layers import MaskedDropout
from calibrant.models.seeding import generators_restored


class DropoutMasks:
    """Draws the masks of a network's dropout layers."""

    def __init__(self, layers: Mapping[str, MaskedDropout]) -> None:
        self.layers = layers
        self._shapes: dict[Any, dict[str, list[torch.Size]]] = {}

    def draw(self, seed: int | Sequence[int], key: Any, run: Callable[[], Any], like: Tensor) -> Tensors:
        """The masks for the computation ``run``, which ``key`` identifies, with the dtype and device of ``like``."""
        if key not in self._shapes:
            self._shapes[key] = self._probe(run, like)
        generators = [np.random.SFC64(own) for own in ([seed] if isinstance(seed, int) else seed)]
        masks = {}
        for name, shapes in self._shapes[key].items():
            p = self.layers[name].p
            for position, shape in enumerate(shapes):
                keep = _kept(shape.numel(), p, generators, like.device)
                mask = keep.to(like.dtype).mul_(1 / (1 - p) if p < 1 else 1.0)
                mask = mask.view(shape if isinstance(seed, int) else (len(generators), *shape))
                masks[f"{name}.mask{position}".removeprefix(".")] = mask
        return masks

    def _probe(self, run: Callable[[], Any], like: Tensor) -> dict[str, list[torch.Size]]:
        """The shapes of the masks that a computation uses. It may call a layer several times."""
        for layer in self.layers.values():
            layer.probe = []
        try:
            with torch.no_grad(), generators_restored(like):
                run()
            return {name: layer.probe for name, layer in self.layers.items() if layer.probe is not None}
        finally:
            for layer in self.layers.values():
                for call in range(len(layer.probe or ())):
                    layer.register_buffer(f"mask{call}", torch.ones(()), persistent=False)
                layer.probe = None


_DRAWN_ON_GPU = 2**20
"""The number of units from which on a GPU draws a mask itself. Drawing it on the CPU would delay training."""


def _kept(count: int, p: float, generators: Sequence[np.random.BitGenerator], device: torch.device) -> Tensor:
    """Which units are kept, one row per generator: True with probability ``1 − p``, rounded to 2⁻¹⁶.

    Small masks are drawn on the CPU, so that all devices agree, four units from each random word. Large masks on a GPU
    are drawn there, from a seed that the generator draws.
    """
    if device.type == "cuda" and count >= _DRAWN_ON_GPU:
        seeds = [int(bits.random_raw() >> np.uint64(1)) for bits in generators]
        own = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        return torch.stack([torch.rand(count, generator=g, device=device) >= p for g in own])
    keep = np.empty((len(generators), count), dtype=bool)
    for row, bits in zip(keep, generators, strict=True):
        words = bits.random_raw(-(-count // 4)).astype("<u8", copy=False)
        np.greater_equal(words.view("<u2")[:count], round(p * 2**16), out=row)
    return torch.from_numpy(keep).to(device)
