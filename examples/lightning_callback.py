"""Train with Lightning and end with a calibrated module: ``python examples/lightning_callback.py``.

A small network learns scikit-learn's digits. The callback logs smooth ECE, NLL and the best temperature after every
epoch, and holds the calibrated classifier when training ends.
"""

from __future__ import annotations

import logging
import warnings

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from calibrant import metrics
from calibrant.integrations import CalibrationCallback


class Digits(LightningModule):
    """A perceptron for images of 8 × 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.003)


def main(epochs: int = 20) -> None:
    seed_everything(0, verbose=False)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    pixels, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
    train, val, test = random_split(data, [600, 400, 797])
    callback = CalibrationCallback()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(max_epochs=epochs, accelerator="cpu", callbacks=[callback], **quiet)
    module = Digits()
    trainer.fit(module, DataLoader(train, 64, shuffle=True), DataLoader(val, 200))
    for name, value in trainer.callback_metrics.items():
        print(f"{name}: {float(value):.4f}")

    result = callback.result_
    loader = DataLoader(test, 200)
    known = torch.cat([y for _, y in loader])
    before = torch.cat([module(x).detach() for x, _ in loader])
    print(f"test NLL before: {metrics.nll(before, known, from_logits=True):.4f}")
    print(f"test NLL after:  {metrics.nll(result.probs(loader), known):.4f}")
    print(f"the calibrated module is a {type(result.module).__name__}; torch.save(result.module.state_dict(), …)")


if __name__ == "__main__":
    main()
