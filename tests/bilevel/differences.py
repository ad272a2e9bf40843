"""Slopes by central differences of fourth order, along random directions."""

from __future__ import annotations

import torch


def central_differences(function, phi, directions=6, step=2e-5):
    """Derivatives along random directions by a fourth-order central formula, with the directions."""
    generator = torch.Generator().manual_seed(0)
    count = phi.numel()
    along = (
        torch.eye(count, dtype=phi.dtype)
        if count <= directions
        else torch.randn(directions, count, generator=generator, dtype=phi.dtype)
    )
    along = along / along.norm(dim=1, keepdim=True)

    def difference(d, width):
        return function(phi + width * d) - function(phi - width * d)

    slopes = [(8 * difference(d, step) - difference(d, 2 * step)) / (12 * step) for d in along]
    return along, torch.stack(slopes)
