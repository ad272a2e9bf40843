"""Groups of population members that share one φ.

They serve cross-validated bilevel optimisation: K networks are trained, each without one fold, and their held-out
losses together move one φ. The outer loss of a group is the mean of its members' outer losses. Its hypergradient is the
mean of theirs, because a member's loss depends on φ through its own network only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Ties:
    """The groups of members that share φ, and the weight of each member in its group.

    Parameters
    ----------
    groups : sequence of int
        One label per member. Members with the same label share φ.
    shares : sequence of positive numbers, optional
        The weight of each member in the mean of its group, such as the size of its fold. By default all are equal.
    """

    def __init__(self, groups: Sequence[int] | Tensor, shares: Sequence[float] | Tensor | None = None) -> None:
        _, self.group = torch.unique(torch.as_tensor(groups, dtype=torch.long, device="cpu"), return_inverse=True)
        given = [1.0] * len(groups) if shares is None else shares
        self.shares = torch.as_tensor(given, dtype=torch.float64, device="cpu")
        if self.shares.shape != self.group.shape:
            raise ValueError(
                f"shares must have one entry per member, as tied has ({len(self.group)}); got shape "
                f"{tuple(self.shares.shape)}."
            )
        if not bool(((self.shares > 0) & self.shares.isfinite()).all()):
            raise ValueError(f"shares must be positive and finite; got {self.shares.tolist()}.")
        # Row g of the table lists the members of group g. Shorter groups are padded with entries that do not count.
        rows = [(self.group == g).nonzero().flatten() for g in range(int(self.group.max()) + 1)]
        self.table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        self.present = torch.nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True).bool()

    def mean(self, values: Tensor, counts: Tensor) -> Tensor:
        """``Σ_k s_k·v_k / Σ_k s_k`` over the members of each group that count, for every member; 0 if none counts.

        It sums over an axis instead of scattering, so the result is bitwise reproducible on every device.
        """
        device = values.device
        weights = (self.shares * counts.cpu())[self.table] * self.present
        weights = (weights / weights.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)).to(values)
        shape = (-1, *[1] * (values.dim() - 1))
        finite = torch.where(counts.to(device).view(shape), values, 0.0)  # 0·NaN would be NaN
        means = (weights.view(*weights.shape, *shape[1:]) * finite[self.table.to(device)]).sum(1)
        return means[self.group.to(device)]

    def any(self, mask: Tensor) -> Tensor:
        """For each member, whether ``mask`` is true for any member of its group."""
        return (mask[self.table] & self.present).any(1)[self.group]

    def equal(self, values: Tensor) -> bool:
        """Whether ``values`` (one row per member) are equal within each group."""
        first = self.table[:, 0][self.group].to(values.device)
        return torch.equal(values, values[first])
