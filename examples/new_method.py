"""Add a training method in 40 lines: ``python examples/new_method.py``.

The inner level trains the network with the focal loss. The outer level moves one γ so that the held-out log-loss falls.
docs/add-a-method.md explains each part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from sklearn.datasets import load_digits
from torch import nn

import calibrant
from calibrant.bilevel import Adam, Bilevel, ConstantGamma, FocalWithGamma, Truncated
from calibrant.methods import Method, SolveSettings, Task, TrainedNetwork, TrainingGroup


@dataclass(frozen=True)
class LearnedFocal(Method):
    """Focal loss whose γ is learned on held-out data."""

    hidden: tuple[int, ...] = (64, 64)
    epochs: int | None = None
    learning_rate: float = 0.01
    outer_learning_rate: float = 0.05
    batch_size: int | None = None

    varying: ClassVar[frozenset[str]] = frozenset({"learning_rate", "epochs"})

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        task.need_val("LearnedFocal")
        return Bilevel(model, ConstantGamma(), **self.data(task), inner_loss=FocalWithGamma(), seed=task.seed)

    def solving(self, group: TrainingGroup) -> SolveSettings:
        return SolveSettings(
            hypergradient=Truncated(10, last=5),
            inner_optimizer=Adam(group.each("learning_rate")),
            outer_optimizer=Adam(self.outer_learning_rate),
            steps=group.steps(),
        )

    def learned(self, outcome: TrainedNetwork) -> dict[str, Any]:
        return {"gamma": outcome.solution.outer_variables()}


def main(epochs: int = 100) -> None:
    pixels, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    train, val = (x[:600], y[:600]), (x[600:1000], y[600:1000])
    for method in (LearnedFocal(epochs=epochs), calibrant.methods.Standard(epochs=epochs)):
        result = calibrant.fit(network, train, val, method=method)
        probs = result.probs(x[1000:])
        print(f"{type(method).__name__:13} test NLL {calibrant.metrics.nll(probs, y[1000:]):.3f}")
        if "gamma" in result.fitted.extras:
            print(f"learned γ: {result.fitted.extras['gamma']}")


if __name__ == "__main__":
    main()
