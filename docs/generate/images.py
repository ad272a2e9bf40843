"""The images of README.md: CIFAR-10, CIFAR-100 and CIFAR-10N."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from calibrant.metrics import Estimate
from calibrant.report import format_number
from docs.generate.stored import bullets, paragraph, save_png, signs, stored, words
from studies.common.verdicts import Records, difference, mean, methods
from studies.meta_reg import figures
from studies.meta_reg.groups import groups, times
from studies.meta_reg.targets import RIVAL
from studies.meta_reg.variants import variants
from studies.report import Column, by_seed, to_markdown

SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
COLUMNS = tuple(Column(name, digits=3 if name == "NLL" else 2) for name in ("error %", "NLL", "ECE %", "floor %"))
SHOWN = 5
"""The rows of the table: methods with this many seeds or more on both data sets, without variants."""
ENOUGH = 3
"""Fewer seeds support no sentence on a difference."""
PUBLISHED = "flg-sece-published"
PAGE = "docs/meta-regularisation-results.md"


def images() -> str:
    """Error, NLL and ECE of the methods with enough seeds, and what the paired differences say."""
    shown = _shown()
    seeds = {_seeds(name, method) for name in SETS for method in shown}
    (epochs,) = {r["epochs"] for name in SETS for r in _records(name) if r["method"] in shown}
    return "\n\n".join(
        [
            *(to_markdown([title, *COLUMNS], [_row(name, method) for method in shown]) for name, title in SETS.items()),
            paragraph(
                f"ResNet-18, {epochs} epochs, means over {' to '.join(map(str, sorted({min(seeds), max(seeds)})))} "
                "seeds. The floor is the ECE of a calibrated model with the same confidences. Shown: all methods with "
                f"{SHOWN} seeds or more on both sets, without variants."
            ),
            bullets([*_sentences(), f"[All methods, targets and claims]({PAGE})"]),
        ]
    )


def draw(folder: Path) -> Iterator[Path]:
    """Figures 2 to 5 of the second paper, drawn from the stored runs on each data set."""
    for name in SETS:
        (group,) = groups(_records(name))
        for number, figure, _ in figures.drawn(group):
            yield save_png(figure, folder / f"second-paper-{number}-{name}")


def noisy() -> str:
    """Learned weights on CIFAR-10N, compared with plain training and with training on the clean images too."""
    records, name = stored("meta-reg-noisy").records, "cifar10n-worse"
    if _shared(records, "weights", "ce", "ce-clean") < ENOUGH:
        return ""
    against = {
        rival: format_number(times(difference(records, "error", name, "weights", rival), 100), 1)
        for rival in ("ce", "ce-clean")
    }
    return (
        f"On CIFAR-10N, where {100 * records[0]['wrong_share']:.0f} % of the training labels are wrong, learned sample "
        f"weights change the error by {against['ce']} points; compared with training on the clean held-out images as "
        f"well, by {against['ce-clean']} points "
        f"({_shared(records, 'weights', 'ce', 'ce-clean')} seeds)."
    )


def _sentences() -> list[str]:
    return [
        "`recommended` (cross-entropy, averaged weights and a learned confidence map) needs no step after training. "
        f"Compared with the same network and a temperature (`{RIVAL}`), its ECE is "
        f"{_compared('ece', 'recommended', RIVAL)}; its NLL is {_compared('nll', 'recommended', RIVAL)}.",
        "`flg-sece` is the second paper's method in a form of our own (bounded γ-Net, solved head, late start). "
        f"Compared with `ce`, its ECE is {_compared('ece', 'flg-sece', 'ce')}. Compared with one γ for all images, "
        "moved by feedback (`focal-control`), its ECE is "
        f"{_compared('ece', 'flg-sece', 'focal-control')}. Compared with a temperature (`ce-ts`), its NLL is "
        f"{_compared('nll', 'flg-sece', 'ce-ts')}. {_published()}",
    ]


def _published() -> str:
    """The error of the method in the stored form that is nearest to the paper's text."""
    if not all(_seeds(name, PUBLISHED) for name in SETS):
        return ""
    errors = [f"{100 * mean(_records(name), 'error', name, PUBLISHED).value:.0f} %" for name in SETS]
    seeds = sorted({_seeds(name, PUBLISHED) for name in SETS})
    return (
        f"Near the paper's text (`{PUBLISHED}`, {words([str(n) for n in seeds])} seeds; SECE alone, one step ahead, "
        f"but outer batches of 1,024 images, Adam at 1e-4 and 30 epochs, which are our choices), the mean error is "
        f"{words(errors)}."
    )


def _compared(metric: str, method: str, rival: str) -> str:
    """Where the method is better or worse than its rival, on data sets where both have enough seeds."""
    gaps: dict[str, Estimate] = {
        title: difference(_records(name), metric, name, method, rival)
        for name, title in SETS.items()
        if _shared(_records(name), method, rival) >= ENOUGH
    }
    return signs(gaps) or "not known: there are too few seeds"


def _row(name: str, method: str) -> list[object]:
    error, nll, ece, floor = (mean(_records(name), metric, name, method) for metric in ("error", "nll", "ece", "floor"))
    return [f"`{method}`", times(error, 100), nll, times(ece, 100), 100 * floor.value]


def _shown() -> list[str]:
    first, *others = (
        [m for m in methods(_records(name)) if m not in variants() and _seeds(name, m) >= SHOWN] for name in SETS
    )
    return [method for method in first if all(method in other for other in others)]


@cache
def _records(name: str) -> Records:
    return [r for r in stored(f"meta-reg-{name}").records if not r.get("failure")]


def _seeds(name: str, method: str) -> int:
    return sum(r["method"] == method for r in _records(name))


def _shared(records: Records, *names: str) -> int:
    """The number of seeds that all of these methods have."""
    return len(set.intersection(*(set(by_seed(records, "error", method=name)) for name in names)))
