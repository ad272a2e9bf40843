"""What the engine does, in a minute: ``python -m calibrant.demo``.

Five overlapping clusters whose posterior is known. One network is trained in the ordinary way, and then again with
outer variables that a hypergradient moves: a weight for each sample (BO4SC, Sanguin et al. 2024), and an L2 strength
for each layer. Every seed is a member of one population; nothing is tuned here, and the last epoch counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from calibrant import __version__, metrics
from calibrant.bilevel import (
    L2,
    SGD,
    Adam,
    Bilevel,
    Hypergradient,
    Optimizer,
    OuterVariable,
    Plain,
    Population,
    ProgressBar,
    SampleWeights,
    Solution,
    Unrolled,
    averaged,
    solve,
)
from calibrant.data.synthetic import Synthetic, blobs
from calibrant.losses import confidence_bce

TRAIN, VAL, TEST, STEPS, WINDOW, HIDDEN, LR = 700, 300, 1000, 1200, 5, 64, 5e-3
FRESH = 20_000  # samples for the true calibration error
OUTER_LOSS = averaged(confidence_bce)

METHODS: dict[str, tuple[Callable[[nn.Module], OuterVariable | None], Hypergradient, Optimizer | None]] = {
    "standard": (lambda model: None, Plain(WINDOW), None),
    "sample weights": (lambda model: SampleWeights(TRAIN), Unrolled(WINDOW), SGD(1000.0)),
    "L2 per layer": (lambda model: L2(model), Unrolled(WINDOW), Adam(0.05)),
}


def network(seed: int, classes: int) -> nn.Sequential:
    """MLP 2-64-64-C."""
    torch.manual_seed(seed)
    layers = [nn.Linear(2, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)]
    return nn.Sequential(*layers)


def standardised(data: Synthetic) -> tuple[Callable[[np.ndarray], torch.Tensor], torch.Tensor]:
    """The map that standardises by the training part, and the labels as a tensor."""
    mean, std = data.inputs[:TRAIN].mean(0), data.inputs[:TRAIN].std(0)
    return lambda x: torch.tensor((x - mean) / std, dtype=torch.float32), torch.tensor(data.labels)


def train(method: str, sets: list[Synthetic]) -> Solution:
    """All seeds of one method as one population."""
    make_outer, hypergradient, outer_optimizer = METHODS[method]
    problems = []
    for seed, data in enumerate(sets):
        scale, labels = standardised(data)
        x, model = scale(data.inputs), network(seed, data.classes)
        val = slice(TRAIN, TRAIN + VAL)
        problems.append(
            Bilevel(
                model,
                make_outer(model),
                train=(x[:TRAIN], labels[:TRAIN]),
                val=(x[val], labels[val]),
                outer_loss=OUTER_LOSS,
            )
        )
    return solve(
        Population(problems),
        hypergradient=hypergradient,
        inner_optimizer=Adam(LR),
        outer_optimizer=outer_optimizer,
        outer_steps=STEPS // WINDOW,
        callbacks=[ProgressBar(method)],
        compile="trace",
    )


def measure(solution: Solution, seed: int, data: Synthetic, std: float) -> dict[str, Any]:
    """What one member is worth on its test part, beside what the exact posterior scores there."""
    scale, _ = standardised(data)
    member = solution.member(seed)
    x, y = data.inputs[TRAIN + VAL :], data.labels[TRAIN + VAL :]
    probs = member.predict(scale(x)).softmax(1)
    fresh = blobs(FRESH, std, seed=10_000 + seed).inputs
    return {
        "seed": seed,
        "accuracy": metrics.accuracy(probs, y),
        "ece15": metrics.ece(probs, y),
        "floor_posterior15": metrics.ece(data.posterior(x), y),
        "true_ece": metrics.true_ece(member.predict(scale(fresh)).softmax(1), data.posterior(fresh)),
        "nll": metrics.nll(probs, y),
    }


def mean_and_interval(values: list[float]) -> str:
    """Mean and 95 % interval over seeds (Student's t)."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} ± {half:.3f}"


def main() -> None:
    """Run, print a table, and write ``results.json`` and the reliability diagrams."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--std", type=float, default=1.7, help="width of the clusters")
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    arguments = parser.parse_args()
    sets = [blobs(TRAIN + VAL + TEST, arguments.std, seed=seed) for seed in range(arguments.seeds)]
    records: list[dict[str, Any]] = []
    predictions = {}
    columns = ("accuracy", "ece15", "floor_posterior15", "true_ece", "nll")
    print(f"Blobs {arguments.std}, {arguments.seeds} seeds, {STEPS} Adam steps: mean and 95 % interval over seeds\n")
    print(f"{'method':16}" + "".join(f"{c:>19}" for c in columns) + f"{'seconds':>9}")
    for method in METHODS:
        begin = time.perf_counter()
        solution = train(method, sets)
        seconds = time.perf_counter() - begin
        rows = [measure(solution, seed, data, arguments.std) for seed, data in enumerate(sets)]
        records += [{"dataset": f"blobs-{arguments.std}", "method": method, **row} for row in rows]
        print(
            f"{method:16}"
            + "".join(f"{mean_and_interval([r[c] for r in rows]):>19}" for c in columns)
            + f"{seconds:9.1f}"
        )
        scale, _ = standardised(sets[0])
        predictions[method] = solution.member(0).predict(scale(sets[0].inputs[TRAIN + VAL :])).softmax(1).numpy()
    arguments.out.mkdir(parents=True, exist_ok=True)
    config = {"seeds": arguments.seeds, "std": arguments.std, "steps": STEPS, "window": WINDOW, "lr": LR}
    versions = {"calibrant": __version__, "torch": torch.__version__, "python": platform.python_version()}
    result = {"config": config, "versions": versions, "records": records}
    (arguments.out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nfloor_posterior15 is what the exact posterior itself scores. Written: {arguments.out / 'results.json'}")
    _draw(predictions, sets[0].labels[TRAIN + VAL :], arguments.out)


def _draw(predictions: dict[str, np.ndarray], labels: np.ndarray, out: Path) -> None:
    try:
        from calibrant.plots import ModelsDisplay, save_figure

        display = ModelsDisplay.from_predictions({k: (p, labels) for k, p in predictions.items()})
    except ImportError as error:
        print(error)
        return
    save_figure(display.figure_, out / "reliability")
    print(f"Reliability diagrams of seed 0: {out / 'reliability.svg'}")


if __name__ == "__main__":
    main()
