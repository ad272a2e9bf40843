"""Train and calibrate your own PyTorch network: ``python examples/own_network.py``.

A small CNN learns scikit-learn's digits with ``calibrant.fit``. The result is a plain ``nn.Module`` with calibrated
logits, which can be saved, scripted and exported like any other.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import calibrant


def digits_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )


def main(epochs: int = 30, networks: int | None = None) -> None:
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels))
    train, val, test = random_split(data, [400, 300, 1097])

    result = calibrant.fit(
        digits_network(),
        DataLoader(train, 50, shuffle=True),
        DataLoader(val, 100),  # chooses the best state and fits the temperature
        epochs=epochs,
        networks=networks,
        verbose=True,
    )
    images, classes = test[:]
    print(calibrant.evaluate(result.probs(images), classes))

    module = result.module  # one plain nn.Module, however many networks were trained
    with torch.no_grad():
        difference = (module(images).softmax(1) - result.probs(images)).abs().max()
    print(f"a {type(module).__name__}; largest difference to result.probs: {difference:.1e}")


if __name__ == "__main__":
    main()
