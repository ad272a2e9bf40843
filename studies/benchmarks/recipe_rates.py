"""Whether the recipes' learning rates fit networks and batch sizes that they were not chosen on.

``python -m studies.benchmarks.recipe_rates`` trains each network by its recipe, but with two learning rates of AdamW,
and stores the NLL on the validation part. It reads no test part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant import metrics
from studies import script
from studies.benchmarks.recipe_tasks import CHOOSING, case_of
from studies.common.runs import threads_limited_to
from studies.report import Record, to_markdown

RATES, EPOCHS = (0.004, 0.012), 8


class Deep(nn.Module):
    """Six convolutions for the digits, with GroupNorm or without normalisation."""

    def __init__(self, groups: int = 0) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(k, 24, 3, padding=1) for k in (1, *[24] * 5))
        self.head = nn.Linear(24 * 16, 10)
        self.norms = nn.ModuleList(nn.GroupNorm(groups, 24) if groups else nn.Identity() for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        for depth, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = F.relu(norm(convolution(x)))
            x = F.max_pool2d(x, 2) if depth == 2 else x
        return self.head(x.flatten(1))


class Mixer(nn.Module):
    """Three blocks of linear layers over the rows of a digit, and over their entries."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.head = nn.Linear(8, 48), nn.Linear(48, 10)
        self.rows = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.entries = nn.ModuleList(nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.start(x[:, 0])
        for rows, entries in zip(self.rows, self.entries, strict=True):
            x = x + rows(x.transpose(1, 2)).transpose(1, 2)
            x = x + entries(x)
        return self.head(x.mean(1))


class Splines(nn.Module):
    """A layer of learned functions of each input, as in Kolmogorov–Arnold networks."""

    def __init__(self, inputs: int, outputs: int, places: int = 8) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(outputs, inputs * places) * (inputs * places) ** -0.5)
        self.places = nn.Parameter(torch.linspace(-2, 2, places))
        self.linear = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sums of the functions."""
        bumps = torch.exp(-((x[..., None] - self.places) ** 2) * 4)
        return F.linear(F.silu(x), self.linear) + F.linear(bumps.flatten(1), self.weights)


def shallow() -> nn.Module:
    """Two convolutions without normalisation."""
    first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    pool = nn.MaxPool2d(2)
    return nn.Sequential(first, nn.ReLU(), pool, second, nn.ReLU(), pool, nn.Flatten(), nn.Linear(128, 10))


def perceptron() -> nn.Module:
    """The head of the embeddings."""
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Dropout(0.2), nn.Linear(256, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "deep convolutions": (Deep, "digits", 64),
    "deep convolutions, GroupNorm": (lambda: Deep(4), "digits", 64),
    "shallow convolutions": (shallow, "digits", 64),
    "mixer": (Mixer, "digits", 64),
    "splines": (lambda: nn.Sequential(Splines(128, 32), Splines(32, 10)), "embeddings", 64),
    "perceptron, batch 16": (perceptron, "embeddings", 16),
    "perceptron, batch 1,024": (perceptron, "embeddings", 1024),
}
"""Networks with their task and batch size."""


def measure(runs: Sequence[script.Run]) -> list[Record]:
    """Train once; the record has the NLL on the validation part."""
    return [{**run, "val_nll": validation_nll(run["network"], run["seed"], run["rate"])} for run in runs]


def validation_nll(name: str, seed: int, rate: float) -> float:
    """The NLL of one network on the validation part, on one thread."""
    build, task, size = NETWORKS[name]
    parts = case_of(task, seed).splits
    train = DataLoader(TensorDataset(parts.train.inputs, parts.train.labels), batch_size=size, shuffle=True)
    val = DataLoader(TensorDataset(parts.val.inputs, parts.val.labels), batch_size=256)
    torch.manual_seed(seed)
    with threads_limited_to(1):
        result = calibrant.fit(
            build(), train, val, networks=1, calibration="temperature", epochs=EPOCHS, seed=seed, learning_rate=rate
        )
        nll = metrics.nll(result.probs(val), parts.val.labels)
    return float(f"{nll:.5g}")


def main(words: Sequence[str]) -> None:
    """Train what is missing, and print the validation losses."""
    parser = script.options(__doc__ or "", "results/recipe-rates.json")
    parser.add_argument("--networks", nargs="*", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--seeds", type=int, default=1)
    chosen = parser.parse_args(words)
    runs = [
        [{"network": name, "seed": seed, "rate": rate}]
        for seed in range(CHOOSING, CHOOSING + chosen.seeds)
        for name in chosen.networks
        for rate in RATES
    ]
    order = {"seed": None, "network": list(NETWORKS), "rate": None}
    records = script.run_missing(chosen, "recipe-rates", runs, measure, order)
    print(to_markdown(list(order) + ["val_nll"], [[r[name] for name in (*order, "val_nll")] for r in records]))


if __name__ == "__main__":
    main(sys.argv[1:])
