"""Modules of every kind, with the shapes of their inputs."""

from __future__ import annotations

import torch
from torch import nn

SAMPLES = 8


class Tied(nn.Module):
    """One matrix used as encoder and decoder, under two names."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight

    def forward(self, x):
        return self.decode(torch.tanh(self.encode(x)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]


class SharedNorm(nn.Module):
    """One BatchNorm called twice in a pass: torch updates its statistics twice."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.norm(torch.tanh(self.linear(self.norm(x))))


class Twice(nn.Module):
    """One Dropout called twice in a pass."""

    def __init__(self, p=0.5):
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 4), nn.Dropout(p)

    def forward(self, x):
        return self.drop(self.linear(self.drop(x)))


def convolutional(**norm):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **norm), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3)
    )


def frozen_norm():
    model = convolutional()
    model[1].eval()
    return model


def frozen_layer():
    model = mlp()
    model[0].requires_grad_(False)
    return model


def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


IMAGE, ROW, SEQUENCE = (SAMPLES, 3, 4, 4), (SAMPLES, 4), (SAMPLES, 6, 4)


# Every kind of module is a row: how it is made and the shape of its inputs. None draws random numbers.
MODULES = {
    "mlp": (mlp, ROW),
    "conv and batch norm": (convolutional, IMAGE),
    "batch norm, averaging all": (lambda: convolutional(momentum=None), IMAGE),
    "batch norm without scale": (lambda: convolutional(affine=False), IMAGE),
    "batch norm without statistics": (lambda: convolutional(track_running_stats=False), IMAGE),
    "batch norm left in eval": (frozen_norm, IMAGE),
    "batch norm called twice": (SharedNorm, ROW),
    "instance norm": (
        lambda: nn.Sequential(nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.Flatten()),
        IMAGE,
    ),
    "spectral norm": (lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))), ROW),
    "tied weights": (Tied, ROW),
    "frozen layer": (frozen_layer, ROW),
    "lstm": (Recurrent, SEQUENCE),
    "attention": (Attention, SEQUENCE),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True),
        SEQUENCE,
    ),
    "a lone layer": (lambda: nn.BatchNorm1d(4), ROW),
    "dropout of nothing": (lambda: nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3)), ROW),
}


def make(name):
    build, shape = MODULES[name]
    torch.manual_seed(0)
    model = build().double()
    return model, torch.randn(4, *shape, dtype=torch.float64)


def assert_buffers(found, model):
    expected = dict(model.named_buffers())
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
