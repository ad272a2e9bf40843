"""Named parameters as one flat vector."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from calibrant.data.batch import Tensors


class FlatParameters:
    """The layout of named parameters in one flat vector, in the order of ``parameters``.

    ``channels_last`` stores the kernels of 2-D convolutions with the channel as the last dimension.
    """

    def __init__(self, parameters: Mapping[str, Tensor], *, channels_last: bool = False) -> None:
        self.channels_last = channels_last
        self.names = list(parameters)
        self.shapes = [p.shape for p in parameters.values()]
        self.sizes = [p.numel() for p in parameters.values()]
        self.size = sum(self.sizes)

    def unflatten(self, params: Tensor) -> Tensors:
        """Named views into the flat vector."""
        parts = params.split(self.sizes, dim=-1)
        lead = params.shape[:-1]
        return {k: self.shaped(p, lead, s) for k, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def shaped(self, values: Tensor, lead: torch.Size, shape: torch.Size) -> Tensor:
        """The part of a flat vector that holds one parameter, with its shape and the leading axes ``lead``."""
        if self._moved(shape):
            return _channels_second(values.view(*lead, shape[0], *shape[2:], shape[1]))
        return values.view(lead + shape)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse of :meth:`unflatten`."""
        parts = [(tensors[k], s) for k, s in zip(self.names, self.shapes, strict=True)]
        parts = [(_channels_last(t) if self._moved(s) else t, s) for t, s in parts]
        return torch.cat([t.reshape(*t.shape[: t.dim() - len(s)], -1) for t, s in parts], dim=-1)

    def _moved(self, shape: torch.Size) -> bool:
        """Whether a parameter of this shape is stored with its channels last."""
        return self.channels_last and len(shape) == 4

    def vector(self, tensors: Iterable[Tensor], like: Tensor | None = None) -> Tensor:
        """Parameters in the module's order as one vector. If there are none, the device is that of ``like``."""
        parts = [_channels_last(t.detach()) if self._moved(t.shape) else t.detach() for t in tensors]
        if parts:
            return torch.cat([t.reshape(-1) for t in parts])
        return torch.zeros(0, device=like.device if like is not None else "cpu")


def _channels_last(tensor: Tensor) -> Tensor:
    """``(…, O, I, H, W)`` as ``(…, O, H, W, I)``."""
    return tensor.movedim(-3, -1)


def _channels_second(tensor: Tensor) -> Tensor:
    """The inverse of :func:`_channels_last`."""
    return tensor.movedim(-1, -3)
