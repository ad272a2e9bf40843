"""Problems that become members of populations."""

import torch
import torch.nn.functional as F
from torch import nn

from calibrant.bilevel import L2, SampleWeights
from calibrant.data import TensorStream
from tests.bilevel.loop_cases import CLASSES, SAMPLES, blobs, mlp, problem, rich_mlp

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
