"""Small problems for the tests of the solver: blobs, networks with every kind of layer that has state, and members."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.bilevel import L2, SGD, Adam, Bilevel, Callback, Population, SampleWeights, Solution, Unrolled, solve
from calibrant.data import TensorStream

SAMPLES, CLASSES = 20, 3


def blobs(seed: int = 0, samples: int = SAMPLES, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Three overlapping clouds in the plane."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (samples,), generator=generator)
    centres = torch.tensor([[0.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    x = centres[y] + 0.8 * torch.randn(samples, 2, generator=generator, dtype=torch.float64)
    return x.to(dtype), y


def mlp(seed: int = 0, activation: type[nn.Module] = nn.Tanh, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 6), activation(), nn.Linear(6, CLASSES)).to(dtype)


def rich_mlp(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """BatchNorm and dropout. No bias before BatchNorm, since its gradient is only rounding, which Adam amplifies."""
    torch.manual_seed(seed)
    layers = [nn.Linear(2, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, CLASSES)]
    return nn.Sequential(*layers).to(dtype)


class HiddenDropout(nn.Module):
    """Dropout by a function call, which cannot be intercepted and must be replayed by seeding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(torch.tanh(self.first(x)), 0.3, self.training))


class Replaces(nn.Linear):
    """A layer whose buffer is another tensor after each step; a recording would read the old one in every replay."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("mean", torch.zeros(sizes[0]))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return super().forward(x - self.mean)


def hidden_dropout(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    return HiddenDropout().to(dtype)


def problem(model: nn.Module | None = None, seed: int = 0, **kwargs: Any) -> Bilevel:
    """Sample weights on the blobs."""
    model = mlp(seed) if model is None else model
    dtype = next(model.parameters()).dtype
    kwargs = {"train": blobs(seed, dtype=dtype), "val": blobs(seed + 100, dtype=dtype), "seed": seed, **kwargs}
    outer = kwargs.pop("outer", None) or SampleWeights(SAMPLES, initial_weight=0.7)
    return Bilevel(model, outer, **kwargs)


def run(case: Any, **kwargs: Any) -> Solution:
    """``solve`` with settings that move φ visibly."""
    settings = {
        "hypergradient": Unrolled(4),
        "inner_optimizer": Adam(0.02),
        "outer_optimizer": SGD(5.0),
        "outer_steps": 4,
    }
    return solve(case, **(settings | kwargs))


class Spy(Callback):
    """Records the run after each step."""

    def __init__(self):
        self.phi, self.gradient, self.params = [], [], []

    def on_step(self, run):
        self.phi.append(run.phi)
        self.gradient.append(run.gradient)
        self.params.append(run.state.params)


def population(make=mlp, **kwargs):
    return Population([problem(make(seed), seed=seed, **kwargs) for seed in range(3)])


MEMBERS = 3


INNER = torch.tensor([0.005, 0.02, 0.03], dtype=torch.float64)


OUTER = torch.tensor([1.0, 4.0, 8.0], dtype=torch.float64)


SHARED = blobs(1), blobs(2)


def jitter(inputs, generator):
    return inputs + 0.1 * torch.randn(inputs.shape, generator=generator, dtype=inputs.dtype)


def convolutional(seed):
    torch.manual_seed(seed)
    layers = [nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 4, 1, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout1d(0.3)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, CLASSES)).double()


def sharpened(net, outer, batch):
    """An inner loss with one constant per member."""
    losses = F.cross_entropy(batch.hyper["sharpness"] * net(batch.inputs), batch.targets, reduction="none")
    return outer.weigh(losses, batch)


KINDS = {
    "own data": lambda seed: problem(mlp(seed), seed=seed),
    "shared data": lambda seed: problem(mlp(seed), seed=seed, train=SHARED[0], val=SHARED[1]),
    "mini-batches": lambda seed: problem(mlp(seed), seed=seed, batch_size=8, val_batch_size=5),
    "shared mini-batches": lambda seed: problem(mlp(seed), seed=seed, batch_size=8, train=SHARED[0]),
    "batch norm, dropout, mini-batches": lambda seed: problem(rich_mlp(seed), seed=seed, batch_size=8),
    "convolution": lambda seed: problem(convolutional(seed), seed=seed, batch_size=8),
    "augmentation": lambda seed: problem(
        mlp(seed), seed=seed, train=TensorStream(*blobs(seed), batch_size=8, augment=jitter, seed=seed)
    ),
    "constants": lambda seed: problem(
        mlp(seed), seed=seed, inner_loss=sharpened, hyper={"sharpness": torch.tensor(1.0 + seed)}
    ),
    "penalties": lambda seed: problem(mlp(seed), seed=seed, outer=L2(mlp(), per="unit", initial=0.01)),
}


def frozen(seed):
    model = mlp(seed)
    model[0].requires_grad_(False)
    return model


class WithConstant(SampleWeights):
    def __init__(self, value):
        super().__init__(SAMPLES)
        self.register_buffer("anchor", torch.tensor(value))
