"""Tests that accumulators give the value of the whole sample, for any batches and devices."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_cases import random_pairs, random_probs

from calibrant import metrics

PROBS, LABELS = random_probs(230, 3)
WEIGHT = np.random.default_rng(0).random(230)
CASES = {
    "ece": (lambda: metrics.StreamingECE(10), lambda *a, **k: metrics.ece(*a, bins=10, **k)),
    "l2 debiased": (
        lambda: metrics.StreamingECE(norm="l2", debias=True),
        lambda *a, **k: metrics.ece(*a, norm="l2", debias=True, **k),
    ),
    "mce": (lambda: metrics.StreamingMCE(), metrics.mce),
    "classwise": (lambda: metrics.StreamingClasswiseECE(3), metrics.classwise_ece),
}


def pieces(cuts):
    return [slice(a, b) for a, b in zip([0, *cuts], [*cuts, 230], strict=True) if a < b]


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 230), max_size=6).map(sorted), st.booleans())
@pytest.mark.parametrize("case", CASES)
def test_cutting_does_not_matter(case, cuts, weighted):
    make, whole = CASES[case]
    stream = make()
    for rows in pieces(cuts):
        stream.update(PROBS[rows], LABELS[rows], sample_weight=WEIGHT[rows] if weighted else None)
    expected = whole(PROBS, LABELS, sample_weight=WEIGHT if weighted else None)
    assert stream.compute() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_merge_reset_call_and_state(case):
    make, whole = CASES[case]
    first, second = make(), make()
    assert first(PROBS[:100], LABELS[:100]) == pytest.approx(whole(PROBS[:100], LABELS[:100]), abs=1e-12)
    second.update(torch.from_numpy(PROBS[100:]), torch.from_numpy(LABELS[100:]))
    first.merge_state(second)
    assert first.compute() == pytest.approx(whole(PROBS, LABELS), abs=1e-12)
    restored = make()
    restored.load_state_dict(first.state_dict())
    assert restored.compute() == first.compute()
    assert pickle.loads(pickle.dumps(first)).compute() == first.compute()
    assert first.sync().compute() == first.compute()  # without torch.distributed there is nothing to add
    assert "230 seen" in repr(first)
    first.reset()
    assert np.isnan(first.compute())


def test_pairs_and_logits_and_fixed_memory():
    confidence, correct = random_pairs(1000)
    stream = metrics.StreamingECE()
    size = stream.sums.numel()
    for rows in np.array_split(np.arange(1000), 13):
        stream.update(confidence=confidence[rows], correct=correct[rows])
    assert stream.compute() == pytest.approx(metrics.ece(confidence=confidence, correct=correct), abs=1e-12)
    assert stream.sums.numel() == size
    logits = metrics.StreamingECE()
    logits.update(metrics.Logits(np.log(PROBS)), LABELS)
    assert logits.compute() == pytest.approx(metrics.ece(PROBS, LABELS), abs=1e-9)


def test_bad_use_is_refused():
    with pytest.raises(ValueError, match="'l1', 'l2' or 'max'"):
        metrics.StreamingECE(norm="l0")
    for n_classes in (0, 2.5):
        with pytest.raises(ValueError, match="n_classes must be a positive whole number"):
            metrics.StreamingClasswiseECE(n_classes)
    with pytest.raises(ValueError, match="same kind and size"):
        metrics.StreamingECE(10).merge_state(metrics.StreamingECE(15))
    with pytest.raises(ValueError, match="same kind and size"):
        metrics.StreamingECE().merge_state(metrics.StreamingMCE())
    with pytest.raises(ValueError, match="must have 4 columns"):
        metrics.StreamingClasswiseECE(4).update(PROBS, LABELS)
    with pytest.raises(ValueError, match="sums must have shape"):
        metrics.StreamingECE(10).load_state_dict(metrics.StreamingECE(15).state_dict())


WORKER = """
import sys, torch, torch.distributed as dist
from calibrant import integrations, metrics
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
confidence = torch.linspace(0, 1, 101, dtype=torch.float64)
correct = torch.arange(101) % 3 > 0
stream, wrapped = metrics.StreamingECE(), integrations.ECE()
for target in (stream, wrapped):
    target.update(confidence=confidence[rank::2], correct=correct[rank::2])
whole = metrics.ece(confidence=confidence, correct=correct)
assert abs(stream.sync().compute() - whole) < 1e-12
assert abs(wrapped.compute().item() - whole) < 1e-12
assert abs(stream.compute() - whole) > 1e-6
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_sums_over_two_processes(tmp_path):
    pytest.importorskip("torchmetrics")
    source = str(Path(metrics.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "USE_LIBUV": "0"}
    command = [sys.executable, "-c", WORKER]
    workers = [subprocess.Popen([*command, str(rank), str(tmp_path / "store")], env=environment) for rank in range(2)]
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
