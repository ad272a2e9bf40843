"""The rival: plain training in torch for a given time, with the best validation state and a temperature."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.posthoc import make_calibrator

RATES = (0.003, 0.001)
"""Peak learning rates of Adam. The time is divided between them, and validation data choose one."""
WARMUP = 0.2


def train_plain(model: nn.Module, train: Iterable[Any], val: Iterable[Any], *, seconds: float) -> tuple[nn.Module, Any]:
    """Train a copy of a network for a given processor time, and return it with its fitted temperature.

    The learning rate rises over the first fifth of the time and then falls to zero along a cosine.
    """
    begin = time.process_time()
    found = []
    for number, rate in enumerate(RATES, 1):
        twin = copy.deepcopy(model)
        found.append((*_train(twin, train, val, rate, begin + seconds * number / len(RATES)), twin))
    _, state, best = min(found, key=lambda entry: entry[0])
    best.load_state_dict(state)
    logits, labels = predict(best, val)
    return best, make_calibrator("temperature").fit(logits, labels)


def predict(model: nn.Module, batches: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the logits and labels of all batches."""
    model.eval()
    with torch.no_grad():
        parts = [(call(model, inputs).double(), labels) for inputs, labels in map(split, batches)]
    logits, labels = zip(*parts, strict=True)
    return torch.cat(logits).numpy(), torch.cat(labels).numpy()


def train_steps(model: nn.Module, train: Iterable[Any], steps: int, rate: float = 0.003) -> None:
    """Train a network in place for a given number of steps, on the source task before fine-tuning."""
    optimizer = torch.optim.Adam(model.parameters())
    done = 0
    while done < steps:
        for batch in train:
            _step(model, optimizer, batch, rate * _share(done / steps))
            done += 1
            if done == steps:
                break


def _train(
    model: nn.Module, train: Iterable[Any], val: Iterable[Any], rate: float, end: float
) -> tuple[float, dict[str, Tensor]]:
    """The lowest validation NLL over epochs, and the state that has it."""
    optimizer = torch.optim.Adam(model.parameters())
    begin, best, state = time.process_time(), math.inf, copy.deepcopy(model.state_dict())
    while (now := time.process_time()) < end:
        for batch in train:
            now = time.process_time()
            if now >= end:
                break
            _step(model, optimizer, batch, rate * _share((now - begin) / (end - begin)))
        logits, labels = predict(model, val)
        own = float(F.cross_entropy(torch.as_tensor(logits), torch.as_tensor(labels)))
        if own < best:
            best, state = own, copy.deepcopy(model.state_dict())
    return best, state


def _share(done: float) -> float:
    """Return the learning rate as a share of its peak."""
    if done < WARMUP:
        return 0.04 + 0.96 * done / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (done - WARMUP) / (1 - WARMUP)))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
    inputs, labels = split(batch)
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(call(model, inputs), labels).backward()
    optimizer.step()


def split(batch: Any) -> tuple[Any, Tensor]:
    """Return the inputs and labels of a batch that is a pair or a mapping."""
    if isinstance(batch, dict):
        return {k: v for k, v in batch.items() if k != "labels"}, batch["labels"]
    inputs, labels = batch
    return inputs, labels


def call(model: nn.Module, inputs: Any) -> Tensor:
    """Logits."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)
