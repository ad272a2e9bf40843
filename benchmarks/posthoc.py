"""Held-out log-loss of the post-hoc calibrators against the best peer of the same family.

``python -m benchmarks.posthoc`` prints the table. The claim: ours is no worse than the best of netcal, scikit-learn and
probmetrics (chosen after the fact, on the test set) within the 95 % interval of the paired difference.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import log_softmax, softmax

from benchmarks.posthoc_peers import PEERS, applies, installed
from calibrant.posthoc import make_calibrator

# Nats; the lower end of the interval may exceed zero by this much: solvers stop at different last digits.
TOLERANCE = 1e-4
# Peers return exact zeros, whose log-loss is infinite. All probabilities are clipped here, ours too.
FLOOR = 1e-12


class Case(NamedTuple):
    """A calibration set and a test set, as log-probabilities; the loss of the true posterior where it is known."""

    name: str
    scores: np.ndarray
    labels: np.ndarray
    new_scores: np.ndarray
    new_labels: np.ndarray
    true_loss: float | None


def run() -> list[dict[str, Any]]:
    """One record per data set and family, with ours, each peer and the interval of the paired difference."""
    records = []
    for case in [*_golden_cases(), *_synthetic_cases()]:
        for family, peers in PEERS.items():
            n_classes = case.scores.shape[1]
            chosen = {name: peer for name, peer in peers.items() if applies(family, name, n_classes)}
            if chosen:
                records.append(_compare(case, family, chosen))
    if not any(record["case"].startswith("golden") for record in records):
        records.append(
            {
                "name": "posthoc/golden",
                "value": None,
                "target": None,
                "holds": None,
                "note": "absent: set CALIBRANT_DATA to the folder that holds golden/",
            }
        )
    return records


def _compare(case: Case, family: str, peers: dict[str, Any]) -> dict[str, Any]:
    calibrator = make_calibrator(family).fit(case.scores, case.labels)
    ours = _losses(calibrator.predict_proba(case.new_scores), case.new_labels)
    losses: dict[str, np.ndarray] = {}
    unusable: dict[str, str] = {}
    for name, peer in peers.items():
        if not installed(name):
            unusable[name] = "absent"
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                losses[name] = _losses(peer(case.scores, case.labels, case.new_scores), case.new_labels)
        except Exception as error:  # a peer's failure is a finding about the peer
            unusable[name] = f"failed: {error!r}"[:200]
    record: dict[str, Any] = {
        "name": f"posthoc/{case.name}/{family}",
        "case": case.name,
        "ours": float(ours.mean()),
        "uncalibrated": float(_losses(softmax(case.new_scores, axis=1), case.new_labels).mean()),
        "true_posterior": case.true_loss,
        "peers": {name: float(loss.mean()) for name, loss in losses.items()},
        "unusable_peers": unusable,
        "calibration_samples": len(case.labels),
        "test_samples": len(case.new_labels),
    }
    if not losses:
        return record | {"value": None, "target": None, "holds": None}
    best = min(losses, key=lambda name: losses[name].mean())
    difference = ours - losses[best]
    half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
    low, high = float(difference.mean() - half), float(difference.mean() + half)
    return record | {
        "value": low,
        "target": TOLERANCE,
        "holds": low <= TOLERANCE,
        "best_peer": best,
        "difference": float(difference.mean()),
        "interval": [low, high],
    }


def _losses(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    clipped = np.clip(probs, FLOOR, None)
    clipped = clipped / clipped.sum(axis=1, keepdims=True)
    return -np.log(clipped[np.arange(len(labels)), labels])


def _golden_cases() -> Iterator[Case]:
    """Published predictions: a VGG net's softmax, and the confidence of two ResNets as "right or wrong"."""
    here = Path(__file__).resolve().parent.parent
    folder = Path(os.environ.get("CALIBRANT_DATA", here.parent / "shared" / "data")) / "golden"
    rng = np.random.default_rng(0)
    vgg = folder / "vgg_cifar10_probs.npz"
    if vgg.is_file():
        with np.load(vgg) as data:
            scores, labels = np.log(data["probs"].astype(float)), data["labels"].astype(int)
        yield _split("golden-vgg", scores, labels, 5000, rng)
        yield _split("golden-vgg-few", scores, labels, 1000, rng)
    for net in ("resnet110_c10", "resnet110_c100"):
        path = folder / f"{net}_top1.npz"
        if path.is_file():
            with np.load(path) as data:
                right = (data["label"] == data["pred"]).astype(int)
                confidence = np.clip(data["confidence"], 1e-9, 1 - 1e-9)
            scores = np.log(np.column_stack([1 - confidence, confidence]))
            yield _split(f"golden-{net}-right-or-wrong", scores, right, 5000, rng)


def _synthetic_cases() -> Iterator[Case]:
    """Logits whose true posterior is a known map of them."""
    rng = np.random.default_rng(1)
    n_classes, n = 8, 22_000
    logits = 4.0 * rng.normal(size=(n, n_classes))
    matrix = 0.4 * np.eye(n_classes) + 0.05 * rng.normal(size=(n_classes, n_classes))
    maps = {
        "temperature": logits / 3.0,
        "vector": logits * rng.uniform(0.2, 0.6, n_classes) + 0.5 * rng.normal(size=n_classes),
        "matrix": logits @ matrix.T + 0.3 * rng.normal(size=n_classes),
    }
    for name, true_logits in maps.items():
        yield _known(f"synthetic-{name}", logits, true_logits, rng)
    odds = 3.0 * rng.normal(size=n)
    skewed = -0.3 * np.logaddexp(0.0, -odds) + 1.2 * np.logaddexp(0.0, odds) - 1.0
    pair = [np.column_stack([np.zeros(n), column]) for column in (odds, skewed)]
    yield _known("synthetic-beta", pair[0], pair[1], rng)


def _known(name: str, logits: np.ndarray, true_logits: np.ndarray, rng: np.random.Generator) -> Case:
    posterior = softmax(true_logits, axis=1)
    labels = (rng.random((len(logits), 1)) > posterior.cumsum(axis=1)).sum(axis=1)
    labels = labels.clip(max=logits.shape[1] - 1)
    case = _split(name, np.column_stack([logits, posterior]), labels, 2000, rng)
    n_classes = logits.shape[1]
    true_loss = _losses(case.new_scores[:, n_classes:], case.new_labels).mean()
    scores, new_scores = (log_softmax(a[:, :n_classes], axis=1) for a in (case.scores, case.new_scores))
    return case._replace(scores=scores, new_scores=new_scores, true_loss=float(true_loss))


def _split(name: str, scores: np.ndarray, labels: np.ndarray, n: int, rng: np.random.Generator) -> Case:
    order = rng.permutation(len(labels))
    fit, test = order[:n], order[n:]
    return Case(name, scores[fit], labels[fit], scores[test], labels[test], None)


def table(records: list[dict[str, Any]]) -> str:
    """The records as text."""
    lines = [f"{'case / family':58} {'ours':>8} {'best':>8} {'difference [95 % interval]':>34}  best peer"]
    for record in records:
        name = record["name"].removeprefix("posthoc/")
        if record["value"] is None:
            reason = record.get("note") or f"no peer: {record['unusable_peers']}"
            lines.append(f"{name:58} {record.get('ours', float('nan')):8.4f} {reason}")
            continue
        low, high = record["interval"]
        interval = f"{record['difference']:+.5f} [{low:+.5f}, {high:+.5f}]"
        best = record["peers"][record["best_peer"]]
        verdict = "" if record["holds"] else "  DOES NOT HOLD"
        lines.append(f"{name:58} {record['ours']:8.4f} {best:8.4f} {interval:>34}  {record['best_peer']}{verdict}")
        lines += [f"{'':60}{peer}: {why}" for peer, why in record["unusable_peers"].items()]
    held = [record["holds"] for record in records if record["holds"] is not None]
    return "\n".join([*lines, f"{sum(held)} of {len(held)} hold."])


if __name__ == "__main__":
    print(table(run()))
