"""The history of a run: losses, hypergradient norms and φ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.bilevel.callbacks.base import Callback
from calibrant.bilevel.run import Run


class History(Callback):
    """Record losses and hypergradient norms of every outer step, and φ every ``phi_every`` steps.

    After the run, ``history["inner_loss"]``, ``["outer_loss"]`` and ``["gradient_norm"]`` are tensors with one row per
    outer step; for a population, they have one column per member. The first row of ``history["phi"]`` is φ before the
    first step, and one row follows for every ``phi_every`` steps; without ``phi_every`` it is empty. A member that has
    stopped repeats its last values.
    """

    def __init__(self, *, phi_every: int | None = None) -> None:
        if phi_every is not None and phi_every < 1:
            raise ValueError(f"phi_every must be at least 1, or None; got {phi_every}.")
        self.phi_every = phi_every
        self.rows: dict[str, list[Tensor]] = {
            "inner_loss": [],
            "outer_loss": [],
            "gradient_norm": [],
            "phi": [],
        }

    def on_start(self, run: Run) -> None:
        if run.step == 0:
            self.rows = {name: [] for name in self.rows}
        if self.phi_every and not self.rows["phi"]:
            self.rows["phi"].append(run.phi.cpu())

    def on_step(self, run: Run) -> None:
        self._add(run, "inner_loss", run.inner_losses[-1])
        if run.outer_loss is not None:
            self._add(run, "outer_loss", run.outer_loss)
        if run.gradient is not None:
            self._add(run, "gradient_norm", run.gradient.norm(dim=-1))
        if self.phi_every and run.step % self.phi_every == 0:
            self.rows["phi"].append(run.phi.cpu())

    def _add(self, run: Run, name: str, values: Tensor) -> None:
        rows = self.rows[name]  # they stay on the device: copying them in each step would delay training
        rows.append(run.select(run.ran, values.detach(), rows[-1]) if rows else values.detach())

    def __getitem__(self, name: str) -> Tensor:
        return torch.stack(self.rows[name]).cpu() if self.rows[name] else torch.empty(0, device="cpu")

    def state_dict(self) -> dict[str, Any]:
        return {name: self[name] for name, rows in self.rows.items() if rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # φ is kept on the CPU. The other rows continue on the device of the run, where a checkpoint is loaded to.
        rows = {name: values.cpu() if name == "phi" else values for name, values in state.items()}
        self.rows = {name: list(rows[name]) if name in rows else [] for name in self.rows}
