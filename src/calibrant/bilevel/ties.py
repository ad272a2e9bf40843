"""Members of a population that share one φ.

Cross-validated bilevel optimisation is the use: K networks, each trained without one fold, whose held-out losses
together move one φ. The group's outer loss is the mean of its members' outer losses, and its hypergradient the mean of
theirs, for a member's loss depends on φ through its own network only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Ties:
    """Which members belong together, and how much each counts.

    Parameters
    ----------
    groups : sequence of int
        One label a member; members with the same label share φ.
    shares : sequence of positive numbers, optional
        How much each member counts in the mean of its group (the sizes of the folds, say). Default: all the same.
    """

    def __init__(self, groups: Sequence[int] | Tensor, shares: Sequence[float] | Tensor | None = None) -> None:
        _, self.group = torch.unique(torch.as_tensor(groups, dtype=torch.long).cpu(), return_inverse=True)
        self.shares = torch.as_tensor([1.0] * len(groups) if shares is None else shares, dtype=torch.float64).cpu()
        if self.shares.shape != self.group.shape:
            raise ValueError(
                f"tied has {len(self.group)} entries and shares has shape {tuple(self.shares.shape)}; both must have "
                "one entry a member."
            )
        if not bool(((self.shares > 0) & self.shares.isfinite()).all()):
            raise ValueError(f"shares must be positive and finite; got {self.shares.tolist()}.")
        # Row g of the table names the members of group g; shorter groups are filled up with members that do not count.
        rows = [(self.group == g).nonzero().flatten() for g in range(int(self.group.max()) + 1)]
        self.table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        self.present = torch.nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True).bool()

    def mean(self, values: Tensor, counts: Tensor) -> Tensor:
        """``Σ_k s_k·v_k / Σ_k s_k`` over the members of each group that count, handed to all of them; 0 if none does.

        A sum over an axis rather than a scattered one, so that it is the same to the bit each time on every device.
        """
        device = values.device
        weights = (self.shares * counts.cpu())[self.table] * self.present
        weights = (weights / weights.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)).to(values)
        shape = (-1, *[1] * (values.dim() - 1))
        finite = torch.where(counts.to(device).view(shape), values, 0.0)  # 0·NaN would be NaN
        means = (weights.view(*weights.shape, *shape[1:]) * finite[self.table.to(device)]).sum(1)
        return means[self.group.to(device)]

    def any(self, mask: Tensor) -> Tensor:
        """For each member whether ``mask`` holds for any of its group."""
        return (mask[self.table] & self.present).any(1)[self.group]

    def equal(self, values: Tensor) -> bool:
        """Whether ``values`` (one row a member) are the same throughout each group."""
        first = self.table[:, 0][self.group].to(values.device)
        return torch.equal(values, values[first])
