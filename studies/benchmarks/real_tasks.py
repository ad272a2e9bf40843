"""Tasks of :mod:`studies.benchmarks.recipes` on real text, a real table, and classes that a network was not trained on.

``--data`` names a folder with the published files: ``20news-bydate-train/GROUP/FILE`` and ``20news-bydate-test`` (20
newsgroups, the split by date), ``adult.tsv.gz`` (the census data of PMLB), and those of CIFAR-100.
"""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.datasets import load_files
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn

from studies.network_tasks import Pair, Splits

LENGTH, VOCABULARY, WIDTH = 200, 20_000, 256
"""Words of a text, words that are known, and numbers of an embedded text. Word 0 is padding, 1 is any other word."""


@dataclass(frozen=True)
class RealTask:
    """A task: its splits for a seed, and its network."""

    draw: Callable[[Path, int], Splits]
    build: Callable[[int, int], nn.Module]
    """``(classes, seed)``."""
    epochs: int


@dataclass(frozen=True)
class Rows:
    """Batches of inputs in memory, in a new order for each epoch with ``shuffle``."""

    pair: Pair
    shuffle: bool
    size: int = 128

    def __len__(self) -> int:
        return -(-len(self.pair.labels) // self.size)

    def __iter__(self) -> Iterator[Any]:
        inputs, labels = self.pair
        count = len(labels)
        order = torch.randperm(count) if self.shuffle else torch.arange(count)
        for rows in order.to(labels.device).split(self.size):
            yield inputs[rows], labels[rows]


def parts(train: Pair, test: Pair, seed: int) -> Splits:
    """A tenth of the training samples, chosen by the seed, for validation."""
    order = torch.randperm(len(train.labels), generator=torch.Generator().manual_seed(1000 * seed + 7))
    cut = len(order) // 10
    val, rest = (Pair(train.inputs[rows], train.labels[rows]) for rows in (order[:cut], order[cut:]))
    return Splits(rest, val, test)


@cache
def news(folder: Path) -> tuple[list[list[str]], list[list[str]], Tensor, Tensor]:
    """The texts of 20 newsgroups without their headers, and the labels: training texts, test texts, and both labels."""
    texts, labels = [], []
    for part in ("train", "test"):
        files = load_files(str(folder / f"20news-bydate-{part}"), encoding="latin1", shuffle=False)
        texts.append([text.partition("\n\n")[2] for text in files.data])
        labels.append(torch.as_tensor(files.target))
    return texts[0], texts[1], labels[0], labels[1]


@cache
def news_words(folder: Path) -> tuple[Pair, Pair]:
    """The first words of each text as numbers."""
    train, test, train_labels, test_labels = news(folder)
    split = TfidfVectorizer().build_analyzer()
    texts = [[split(text)[:LENGTH] for text in part] for part in (train, test)]
    common = Counter(word for text in texts[0] for word in text).most_common(VOCABULARY - 2)
    numbers = {word: number for number, (word, _) in enumerate(common, 2)}
    coded = []
    for part in texts:
        words = torch.zeros(len(part), LENGTH, dtype=torch.long)
        for row, text in enumerate(part):
            words[row, : len(text)] = torch.tensor([numbers.get(word, 1) for word in text], dtype=torch.long)
        words[:, 0].clamp_(min=1)  # a text without words
        coded.append(words)
    return Pair(coded[0], train_labels), Pair(coded[1], test_labels)


@cache
def news_vectors(folder: Path) -> tuple[Pair, Pair]:
    """Each text as a vector: the leading components of its weighted word counts (latent semantic analysis)."""
    train, test, train_labels, test_labels = news(folder)
    weights = TfidfVectorizer(min_df=3, sublinear_tf=True, stop_words="english")
    components = TruncatedSVD(WIDTH, random_state=0)
    vectors = components.fit_transform(weights.fit_transform(train)), components.transform(weights.transform(test))
    pairs = [torch.as_tensor(v, dtype=torch.float32) * WIDTH**0.5 for v in vectors]
    return Pair(pairs[0], train_labels), Pair(pairs[1], test_labels)


def adult(folder: Path, seed: int) -> Splits:
    """The census data, with a third as test part; columns have mean 0 and standard deviation 1."""
    with gzip.open(folder / "adult.tsv.gz", "rt") as file:
        frame = pd.read_csv(StringIO(file.read()), sep="\t")
    labels = torch.as_tensor(frame.pop("target").to_numpy().astype(np.int64))
    values = torch.tensor(frame.to_numpy(np.float32))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1000 * seed + 8))
    test, train = order[: len(order) // 3], order[len(order) // 3 :]
    values = (values - values[train].mean(0)) / values[train].std(0)
    return parts(Pair(values[train], labels[train]), Pair(values[test], labels[test]), seed)


class NewsTransformer(nn.Module):
    """A transformer of 4 layers of width 192 over words, and a linear layer on their mean."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 192, padding_idx=0)
        self.places = nn.Parameter(0.02 * torch.randn(1, LENGTH, 192))
        layer = nn.TransformerEncoderLayer(192, 4, 384, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, n_classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits."""
        padding = words == 0
        hidden = self.norm(self.body(self.words(words) + self.places, src_key_padding_mask=padding))
        kept = (~padding).unsqueeze(2).to(hidden)
        return self.head((hidden * kept).sum(1) / kept.sum(1))


class NewsLSTM(nn.Module):
    """An LSTM in both directions over words, and a linear layer on the largest value of each unit."""

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 128, padding_idx=0)
        self.lstm = nn.LSTM(128, 128, batch_first=True, bidirectional=True)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(256, n_classes)

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits."""
        states, _ = self.lstm(self.words(words))
        states = states.masked_fill((words == 0).unsqueeze(2), -1e4)
        return self.head(self.drop(states.amax(1)))


def seeded(build: Callable[[int], nn.Module]) -> Callable[[int, int], nn.Module]:
    """Build a network with the given seed."""

    def network(n_classes: int, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return build(n_classes)

    return network


def perceptron(inputs: int, width: int) -> Callable[[int], nn.Module]:
    """Two layers with dropout."""

    def build(n_classes: int) -> nn.Module:
        body = [nn.Linear(inputs, width), nn.GELU(), nn.Dropout(0.2), nn.Linear(width, width), nn.GELU()]
        return nn.Sequential(*body, nn.Dropout(0.2), nn.Linear(width, n_classes))

    return build


REAL = {
    "news-transformer": RealTask(lambda f, s: parts(*news_words(f), s), seeded(NewsTransformer), 10),
    "news-lstm": RealTask(lambda f, s: parts(*news_words(f), s), seeded(NewsLSTM), 10),
    "news-embeddings": RealTask(lambda f, s: parts(*news_vectors(f), s), seeded(perceptron(WIDTH, 512)), 10),
    "adult": RealTask(adult, seeded(perceptron(14, 256)), 10),
}


def pretrain(model: nn.Module, loader: Any, epochs: int) -> None:
    """Train a network in place by SGD with one cycle, on the classes before fine-tuning."""
    device = next(model.parameters()).device.type
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(loader))
    model.train()
    for _ in range(epochs):
        for inputs, labels in loader:
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                logits = model(inputs)
            F.cross_entropy(logits.float(), labels).backward()
            optimizer.step()
            schedule.step()
