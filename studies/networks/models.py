"""The networks of the tasks, written as a user would write them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class DigitsCNN(nn.Module):
    """Two convolutions with BatchNorm, and a linear layer on the pooled channels."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(64, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (n, 1, 8, 8)."""
        return self.head(self.body(images))


class Recurrent(nn.Module):
    """An LSTM over symbols and a linear layer on its state at the last symbol of each sequence."""

    def __init__(self, n_classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(13, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, n_classes)

    def forward(self, symbols: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits of padded sequences (n, time) with their lengths (n,)."""
        states, _ = self.lstm(self.embed(symbols))
        return self.head(states[torch.arange(len(lengths)), lengths - 1])


class Encoder(nn.Module):
    """A transformer encoder over words and a linear layer on the mean of the words that are not padding."""

    def __init__(self, n_classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(40, 32, padding_idx=0)
        self.place = nn.Embedding(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(32, n_classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits of padded sentences (n, words)."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        words = self.embed(input_ids) + self.place(places)
        states = self.encoder(words, src_key_padding_mask=attention_mask == 0)
        kept = attention_mask.unsqueeze(-1).to(states)
        return self.head((states * kept).sum(1) / kept.sum(1))


class Tabular(nn.Module):
    """A perceptron on numbers and embedded categories."""

    def __init__(self, n_classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.ModuleList([nn.Embedding(6, 4) for _ in range(2)])
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, n_classes)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """Return the logits of rows with numbers (n, 12) and categories (n, 2)."""
        categories = [layer(column) for layer, column in zip(self.embed, codes.T, strict=True)]
        return self.head(self.body(torch.cat([numbers, *categories], dim=1)))


def digits_cnn(n_classes: int, seed: int) -> nn.Module:
    """Return a new :class:`DigitsCNN`."""
    torch.manual_seed(seed)
    return DigitsCNN(n_classes)
