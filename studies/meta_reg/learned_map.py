"""What learning the confidence map during training adds: ``recommended`` against post-hoc maps of the same network.

``python -m studies.meta_reg.learned_map OUT …`` reads folders that ``reproduce meta-reg`` has written,
with the logits of each network. It fits a temperature and :class:`calibrant.posthoc.Auto` to the network of
``recommended`` on the validation and meta-validation parts together, and scores both on the test part.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant import metrics
from calibrant.posthoc import Auto, Calibrator, Temperature
from studies.common.shared import made
from studies.meta_reg.measures import DRAWS, scored
from studies.report import read_results, write_results

METHOD = "recommended"
NETWORKS = ("recommended", "ce-average", "ce-average-ts")
"""Methods with one network in common; its logits are stored under the name of the first that was run."""
SCORES = ("error", "nll", "ece", "floor")


def compare(path: Path, record: Mapping[str, Any], candidates: Sequence[str] | None = None) -> dict[str, Any]:
    """The scores of the maps of one network. ``record`` is that of ``recommended``, with the map learned in training.

    ``candidates`` are the calibrators of ``Auto``; None: all.
    """
    with np.load(path) as stored:
        held, labels = (
            np.concatenate([stored[f"{part}_{name}"] for part in ("val", "meta")]) for name in ("logits", "labels")
        )
        logits, truth = stored["test_logits"].astype(np.float64), stored["test_labels"].astype(np.int64)
    held, labels = held.astype(np.float64), labels.astype(np.int64)
    auto = Auto(candidates=candidates)
    maps: dict[str, Calibrator] = {"temperature": Temperature(), "auto": auto}
    map_scores = {name: _scores(own.fit(held, labels).predict_proba(logits), truth) for name, own in maps.items()}
    setup = {name: record[name] for name in ("dataset", "model", "recipe", "epochs", "limit", "seed")}
    learned = {name: record[name] for name in SCORES}
    return {**setup, "learned": learned, **map_scores, "choice": auto.choice_, "held_out": len(labels)}


def _scores(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    values = scored(probs, labels)
    floor = metrics.noise_floor(confidence=probs.max(1), n_resamples=DRAWS).mean
    return {name: float(f"{value:.6g}") for name, value in {**values, "floor": floor}.items() if name in SCORES}


def compare_all(folder: Path, candidates: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """One record for each seed of ``recommended`` in a folder whose logits are stored."""
    records = []
    for record in read_results(folder / "results.json").records:
        stems = [f"{record['dataset']}-{record['recipe']}-{name}-{record['seed']}" for name in NETWORKS]
        paths = [path for stem in stems if (path := folder / "logits" / f"{stem}.npz").exists()]
        if record["method"] == METHOD and not record["failure"] and paths:
            records.append(compare(paths[0], record, candidates))
    return records


def main(arguments: Sequence[str]) -> None:
    """Compare, and write the result file."""
    parser = argparse.ArgumentParser(description="The confidence map of recommended against post-hoc maps.")
    parser.add_argument("folders", nargs="+", type=Path, help="folders written by `reproduce meta-reg`")
    parser.add_argument("--candidates", nargs="+", help="the calibrators of Auto; default: all")
    parser.add_argument("--out", type=Path, default=Path("results/learned-map.json"))
    options = parser.parse_args(arguments)
    records = [record for folder in options.folders for record in compare_all(folder, options.candidates)]
    config = {"experiment": "learned-map", "candidates": options.candidates or "all"}
    write_results(options.out, {**config, **made()}, records)
    print(f"Written: {options.out} ({len(records)} runs)")


if __name__ == "__main__":
    main(sys.argv[1:])
