"""The tasks and networks of `studies.networks`: images, sequences, sentences with padding, and a table.

Every task has three versions. ``scratch`` trains a new network on few samples, and ``large`` on thousands, for ``python
-m studies.benchmarks.recipes``. ``tuned`` starts from a network that was trained on a related source task, with a new
head and few labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 64
COUNTS = {
    "scratch": (1500, 500, 3000),
    "large": (8000, 2000, 3000),
    "source": (3000, 500, 1),
    "tuned": (400, 200, 3000),
}
"""Samples for training, validation and test, in each version of the drawn tasks."""
DIGITS_COPIES = {"large": (10, 7, 4)}
"""Noisy copies of each digit in training, validation and test, if they are not 1, 1 and 4."""
DIGITS_NOISE = 0.25
VOCABULARY, LANGUAGES = 12, 4
WORDS, SCORED = 40, 24
NOT, VERY = 1, 2
"""Tokens that change the next word; token 0 is padding."""


class Pair(NamedTuple):
    """Inputs of the network, and labels."""

    inputs: Any
    labels: Tensor


class Splits(NamedTuple):
    """The three parts of a task."""

    train: Pair
    val: Pair
    test: Pair


@dataclass(frozen=True)
class TaskKind:
    """A named task: how to draw its data and build its network."""

    kind: str
    """CNN, LSTM, transformer or table."""
    story: str
    draw: Callable[[int, str], Splits]
    """``(seed, part)``; the part is "scratch", "large", "source" or "tuned"."""
    build: Callable[[int, int], nn.Module]
    """``(classes, seed)``."""
    head: str
    """The name of the last layer, which fine-tuning replaces."""
    names: tuple[str, ...] = ()
    """Names of the inputs if a batch is a mapping."""

    def loader(self, pair: Pair, *, shuffle: bool) -> Any:
        """Return a data loader whose batches are pairs, or mappings with named inputs and "labels"."""
        columns = [pair.inputs[name] for name in self.names] if self.names else [pair.inputs]
        data = TensorDataset(*columns, pair.labels)
        named = Named(self.names) if self.names else None
        return DataLoader(data, batch_size=BATCH, shuffle=shuffle, collate_fn=named)


@dataclass(frozen=True)
class Named:
    """Collates samples to a mapping with named inputs and labels."""

    names: tuple[str, ...]

    def __call__(self, rows: list[tuple[Tensor, ...]]) -> dict[str, Tensor]:
        columns = [torch.stack(column) for column in zip(*rows, strict=True)]
        return dict(zip((*self.names, "labels"), columns, strict=True))


def classes_of(splits: Splits) -> int:
    """Return the number of classes in the labels."""
    return int(max(pair.labels.max() for pair in splits)) + 1


def digits(seed: int, part: str) -> Splits:
    """scikit-learn's digits with noise, shifted by up to a pixel. No image is in two parts.

    The source task has the digits 0 to 4, the tuned task 5 to 9.
    """
    pixels, classes = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels.reshape(-1, 1, 8, 8) / 16, dtype=torch.float32), torch.tensor(classes)
    whole = part in ("scratch", "large")
    if not whole:
        chosen = labels < 5 if part == "source" else labels >= 5
        images, labels = images[chosen], labels[chosen] - (0 if part == "source" else 5)
    generator = _generator(seed, 1)
    order = torch.randperm(len(labels), generator=generator)
    share = (800, 300) if whole else (250, 120)
    cuts = order[: share[0]], order[share[0] : sum(share)], order[sum(share) :]

    def noisy(rows: Tensor, copies: int) -> Pair:
        rows = rows.repeat(copies)
        shifts = torch.randint(-1, 2, (len(rows), 2), generator=generator).tolist()
        moved = torch.stack(
            [torch.roll(image, shift, (1, 2)) for image, shift in zip(images[rows], shifts, strict=True)]
        )
        return Pair(moved + DIGITS_NOISE * torch.randn(moved.shape, generator=generator), labels[rows])

    copies = DIGITS_COPIES.get(part, (1, 1, 4))
    return Splits(*(noisy(rows, many) for rows, many in zip(cuts, copies, strict=True)))


def languages(seed: int, part: str) -> Splits:
    """Sequences of symbols from Markov chains; the class is the chain. Sequences are padded to one length."""
    generator = _generator(seed, 2)
    common = torch.randn(VOCABULARY, VOCABULARY, generator=generator)
    tables = [(common + 1.0 * torch.randn(VOCABULARY, VOCABULARY, generator=generator)).softmax(1) for _ in range(8)]
    chains = torch.stack(tables[4:] if part == "tuned" else tables[:4])

    def draw(count: int) -> Pair:
        labels = torch.randint(0, LANGUAGES, (count,), generator=generator)
        lengths = torch.randint(6, 17, (count,), generator=generator)
        symbols = torch.zeros(count, 16, dtype=torch.long)
        symbols[:, 0] = torch.randint(0, VOCABULARY, (count,), generator=generator)
        for step in range(1, 16):
            chances = chains[labels, symbols[:, step - 1]]
            symbols[:, step] = torch.multinomial(chances, 1, generator=generator)[:, 0]
        kept = torch.arange(16) < lengths[:, None]
        return Pair({"symbols": torch.where(kept, symbols + 1, 0), "lengths": lengths}, labels)

    return Splits(*(draw(count) for count in COUNTS[part]))


def reviews(seed: int, part: str) -> Splits:
    """Sentences of words with scores; "not" reverses the next word's score and "very" doubles it.

    The class is drawn from a softmax of the total. The source task has five classes (stars), the tuned task three
    grades, of which the middle one is rare.
    """
    generator = _generator(seed, 3)
    scores = torch.zeros(WORDS)
    scores[-SCORED:] = torch.randn(SCORED, generator=generator)
    stars = part == "source"
    places = torch.linspace(-4, 4, 5) if stars else torch.tensor([-1.5, 0.5, 2.0])

    def draw(count: int) -> Pair:
        lengths = torch.randint(4, 17, (count,), generator=generator)
        words = torch.randint(3, WORDS, (count, 16), generator=generator)
        change = torch.rand(count, 16, generator=generator)
        words = torch.where(change < 0.12, NOT, torch.where(change < 0.22, VERY, words))
        kept = torch.arange(16) < lengths[:, None]
        words = torch.where(kept, words, 0)
        before = nn.functional.pad(words[:, :-1], (1, 0))
        factor = torch.where(before == NOT, -1.0, torch.where(before == VERY, 2.0, 1.0))
        total = (scores[words] * factor).sum(1)
        logits = -((total[:, None] - places) ** 2) / 4
        labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
        return Pair({"input_ids": words, "attention_mask": kept.long()}, labels)

    return Splits(*(draw(count) for count in COUNTS[part]))


def table(seed: int, part: str) -> Splits:
    """Twelve numbers and two categories; the class is drawn from a softmax of a random network.

    Source and tuned task share the network's first layer.
    """
    generator = _generator(seed, 4)
    first = torch.randn(12, 16, generator=generator) / 12**0.5
    levels = torch.randn(2, 6, 16, generator=generator)
    second = [2.5 * torch.randn(16, 3, generator=generator) / 4 for _ in range(2)]

    def draw(count: int) -> Pair:
        numbers = torch.randn(count, 12, generator=generator)
        codes = torch.randint(0, 6, (count, 2), generator=generator)
        hidden = torch.tanh(2 * numbers @ first + levels[0, codes[:, 0]] + levels[1, codes[:, 1]])
        labels = torch.multinomial((hidden @ second[part == "tuned"]).softmax(1), 1, generator=generator)[:, 0]
        return Pair({"numbers": numbers, "codes": codes}, labels)

    return Splits(*(draw(count) for count in COUNTS[part]))


def _generator(seed: int, kind: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + kind)


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


TASKS: dict[str, TaskKind] = {
    "digits": TaskKind("CNN", "scikit-learn's digits, shifted and under noise", digits, digits_cnn, "head"),
    "languages": TaskKind(
        "LSTM",
        "sequences of 12 symbols from four Markov chains; which one?",
        languages,
        Recurrent,
        "head",
        ("symbols", "lengths"),
    ),
    "reviews": TaskKind(
        "transformer",
        "sentences whose words have scores that `not` and `very` change; three grades",
        reviews,
        Encoder,
        "head",
        ("input_ids", "attention_mask"),
    ),
    "table": TaskKind(
        "table",
        "twelve numbers and two categories; three classes drawn from a random network",
        table,
        Tabular,
        "head",
        ("numbers", "codes"),
    ),
}
