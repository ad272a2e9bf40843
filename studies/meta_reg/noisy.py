"""Methods for noisy human labels (CIFAR-10N)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from calibrant.bilevel import Bilevel
from calibrant.methods import Calibrated, Entry, Task
from calibrant.methods.image_networks import NEXT_STEP, NetworkTraining, Recipe, Reweighting


@dataclass(frozen=True)
class AllPartsTraining(NetworkTraining):
    """Training on the validation and meta-validation parts as well, to measure the value of these labels for training.

    Nothing is held out, so a temperature fitted on the validation part is meaningless.
    """

    def problem(self, model: nn.Module, task: Task) -> Bilevel:
        parts = [part for part in (task.train, task.val, task.meta) if part is not None]
        return super().problem(model, replace(task, train=sum(parts[1:], parts[0])))


WEIGHTS = Reweighting()
NOISY_METHODS: dict[str, Entry] = {
    "ce-stopped": Entry(
        NetworkTraining(Recipe(select="error")),
        "cross-entropy, with the weights of the lowest error on clean validation data",
    ),
    "ce-clean": Entry(
        AllPartsTraining(), "cross-entropy, also trained on the clean validation parts; nothing is held out"
    ),
    "weights": Entry(WEIGHTS, "one weight per sample, moved by clean data, with a solved head"),
    "weights-ts": Entry(Calibrated("temperature", WEIGHTS), "the same with temperature scaling"),
    "weights-one-step": Entry(
        Reweighting(hypergradient=NEXT_STEP), "one weight per sample, moved by one look-ahead step of the head"
    ),
}
"""Additional methods for noisy labels."""
COMPARED = ("ce", "ce-ts", "flg-sece", "recommended", *NOISY_METHODS)
"""The default methods of a study with noisy labels."""
SEEDS = 3
