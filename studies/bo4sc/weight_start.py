"""Where BO4SC's weights start, and the weights that Figure 3 shows: ``python -m studies.bo4sc.weight_start``.

The paper does not state w⁰. Its default here is 1, so that training starts like standard training. The records are like
those of the ablation, for the set of Figure 3.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from studies import script
from studies.bo4sc.figures import WEIGHTS_SET
from studies.bo4sc.variants import default_bo4sc
from studies.common.records import prepare, weight_shares
from studies.common.runs import run_all
from studies.report import Record

STARTS = {f"w⁰ = {start:g}": start for start in (0.25, 0.5, 0.75, 1.0)}
SEEDS = 20


def measure(runs: Sequence[script.Run]) -> list[Record]:
    """The records of runs, whose networks train together."""
    methods = {name: replace(default_bo4sc(), initial_weight=start) for name, start in STARTS.items()}
    plan = [(run["method"], methods[run["method"]], prepare(run["dataset"], run["seed"])) for run in runs]
    return [
        done.record() | weight_shares(done.fitted, done.prepared.task.train) for done in run_all(plan, device="cpu")
    ]


def main(words: Sequence[str]) -> None:
    """Make the runs that are not stored."""
    chosen = script.options(__doc__ or "", "results/bo4sc-weight-start.json").parse_args(words)
    groups = [[{"dataset": WEIGHTS_SET, "method": name, "seed": seed} for seed in range(SEEDS)] for name in STARTS]
    order = {"dataset": [WEIGHTS_SET], "method": list(STARTS), "seed": None}
    script.run_missing(chosen, "bo4sc-weight-start", groups, measure, order)


if __name__ == "__main__":
    main(sys.argv[1:])
