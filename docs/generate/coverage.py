"""One row for each equation, algorithm, table, figure, baseline and metric of both papers: its command and its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from calibrant.report import by_seed, to_markdown
from docs.generate.stored import RESULTS, stored
from studies.common.shared import count
from studies.meta_reg.data import DATASETS
from studies.meta_reg.readings import READINGS

Row = tuple[str, str, str, str]
HEADINGS = ["paper", "what it is here", "command", "runs"]
NONE = "not run"
IMAGES = ("cifar10", "cifar100", "tiny-imagenet")
BLOBS = ("blobs-1.3", "blobs-1.7", "spirals-2.5", "spirals-3.5", "bac")
NO_RUNS = "needs none"
BO4SC = "python -m studies reproduce bo4sc"


def first_paper() -> str:
    """The rows of BO4SC."""
    tests = {
        "Eq. (1)": ("confidence", "metrics/test_metrics_exact.py"),
        "Eq. (2)": ("over-confidence", "metrics/test_metrics_exact.py"),
        "Eq. (3)": ("calibration, as a test", "metrics/test_metrics_uncertainty.py"),
        "Section 2.2": ("bins and reliability diagrams", "metrics/test_metrics_exact.py"),
        "Eq. (4)": ("ECE", "metrics/test_metrics_exact.py"),
        "Eq. (5)": ("the bilevel problem", "bilevel/test_solver.py"),
        "Eq. (6)": ("T steps in place of the minimum", "bilevel/test_hypergradients.py"),
        "Eq. (7)": ("one step of gradient descent", "bilevel/test_optimizers.py"),
        "Eq. (8)": ("the hypergradient", "bilevel/test_hypergradients.py"),
        "Eq. (9)": ("prediction and confidence", "estimators/test_predicting.py"),
        "Eq. (10)": ("weighted inner loss", "methods/test_bo4sc.py"),
        "Eq. (11)": ("cross-entropy", "losses/test_losses_classification.py"),
        "Eq. (12)": ("mean over validation samples", "bilevel/test_outer_losses.py"),
        "Eq. (13)": ("binary cross-entropy of the confidence", "losses/test_losses_confidence.py"),
        "Eq. (14)": ("the hypergradient of BO4SC", "methods/test_bo4sc.py"),
        "Algorithm 1": ("the whole method, against a plain implementation", "methods/test_bo4sc.py"),
        "Boltzmann operator": ("the smooth maximum in Algorithm 1", "methods/test_bo4sc.py"),
        "Section 2.3, isotonic regression": ("of the confidence", "posthoc/test_posthoc_nonparametric.py"),
    }
    rows: list[Row] = [(item, what, _pytest(path), NO_RUNS) for item, (what, path) in tests.items()]
    for title, method in (("Standard", "standard"), ("IsoReg", "isotonic"), ("BO4SC", "bo4sc")):
        rows.append((title, f"`{method}`", f"{BO4SC} --methods {method}", _synthetic(method)))
    rows += [
        ("Table 1, ECE and accuracy", "all methods, five sets", BO4SC, _synthetic("bo4sc")),
        ("number of bins M", "10 and 15; Table 1 is compared with 10", BO4SC, _synthetic("bo4sc")),
        *(
            (f"Figure {number}", what, BO4SC, _exists("bo4sc.figures.json"))
            for number, what in (
                (1, "confidence over the plane, blobs-1.7"),
                (2, "histograms and reliability diagrams, spirals-3.5"),
                (3, "evolution and final values of the weights, blobs-1.7"),
            )
        ),
        ("Section 4, grid search", "settings of BO4SC", "python -m studies sweep bo4sc", _exists("bo4sc-grid.json")),
    ]
    return to_markdown(HEADINGS, [[a, b, f"`{c}`", d] for a, b, c, d in rows])


def second_paper() -> str:
    """The rows of meta-regularisation."""
    claims = "python -m studies.meta_reg.docs"
    sece, net = "losses/test_losses_calibration.py", "bilevel/test_gamma_net.py"
    tests = {
        "Eq. (1)": ("the bound of the focal loss", "losses/test_losses_definitions.py"),
        "Eq. (2)": ("γ-Net inside, SECE outside", net),
        "Eq. (3)": ("attention of γ-Net, as published", net),
        "Eq. (4)": ("γ from the attention, as published", net),
        "Eq. (5)": ("SECE, normalised", sece),
        "Eq. (6)": ("the Gaussian kernel", sece),
        "Eq. (7)": ("SECE as a mean over samples", sece),
        "Eq. (8)": ("KDE estimate of ECE", "metrics/test_metrics_smooth.py"),
        "Eq. (12)": ("kernel estimate of the accuracy", "losses/test_kernel_means.py"),
        "Algorithm 1 (supplement)": ("one step, against a plain implementation", "studies/meta_reg/test_readings.py"),
    }
    rows: list[Row] = [(item, what, _pytest(path), NO_RUNS) for item, (what, path) in tests.items()]
    rows += [
        (f"Eq. ({n})", "SECE as an upper bound of ECE and of its KDE estimate", claims, NO_RUNS) for n in (9, 10, 11)
    ]
    rows.append(("Section 6", "cost of SECE, parameters of γ-Net, arithmetic of the gains", claims, NO_RUNS))
    baselines = {
        "CE": "ce",
        "CE (TS)": "ce-ts",
        "Focal": "focal",
        "FLSD": "flsd",
        "LS-0.05": "ls-0.05",
        "LS-0.1": "ls-0.1",
        "Mixup": "mixup",
        "MMCE": "mmce",
        "CE-DECE": "ce-dece",
        "CE-SECE": "ce-sece",
        "FLγ": "flg",
        "FLγ-DECE": "flg-dece",
        "FLγ-SECE": "flg-sece",
    }
    for title, method in baselines.items():
        rows.append((title, f"`{method}`", _reproduce(method), _images([method])))
    near = "flg-sece-published"
    rows.append(("FLγ-SECE near the text", f"`{near}`", _reproduce(near), _images([near])))
    queue = "python -m studies.meta_reg.readings_queue --data DIR"
    readings = {record["method"] for record in stored("readings").records}
    rows.append(
        (
            "public code, and the text",
            "readings `…-code`, `…-text`; 60 epochs",
            f"{queue} --work out/readings --out out/readings/results",
            f"CIFAR-10: {len(readings & set(READINGS))} of {len(READINGS)} readings, 1 seed; other sets {NONE}",
        )
    )
    rows.append(
        (
            "`ce`, 350 epochs, summed and clipped losses",
            "`ce-code`, 45,000 images",
            f"{queue} --work out/readings-350 --out out/readings-350/results --methods ce-code --epochs 350",
            _exists("readings-350.json"),
        )
    )
    paper = "python -m studies reproduce meta-reg --dataset cifar10 --data DIR --recipe paper"
    rows.append(("350 epochs", "`--recipe paper`", paper, _paper_recipe()))
    for number, methods in (("1", list(baselines.values())), ("2", ["flg", "flg-sece"])):
        for name in IMAGES if number == "1" else IMAGES[:2]:
            command = f"python -m studies reproduce meta-reg --dataset {name} --data DIR"
            rows.append((f"Table {number}, {DATASETS[name].title}", "all rows", command, _one_set(name, methods)))
    third = ["mdca", "focal-mdca", "mbls", "mbls-0", "focal-sb-ece", "focal-sb-avuc"]
    for name in IMAGES[:2]:
        command = f"python -m studies reproduce meta-reg --dataset {name} --data DIR --methods {' '.join(third)}"
        rows.append((f"Table 3, {DATASETS[name].title}", "methods of other papers", command, _one_set(name, third)))
    figures = {
        "Figure 1": ("drawing of the method", "python -m docs.generate", NO_RUNS),
        "Figure 2": ("reliability diagrams, 15 bins", "python -m docs.generate", _images(["flg-sece"])),
        "Figure 3": ("error, ECE and γ by epoch", "python -m docs.generate", _images(["flg-sece"])),
        "Figure 4": ("reliability diagrams, 20, 50 and 100 bins", "python -m docs.generate", _images(["flg-sece"])),
        "Figure 5": ("ECE and MCE by number of bins, 10 to 1,000", "python -m docs.generate", _images(["flg-sece"])),
    }
    rows += [(item, *row) for item, row in figures.items()]
    exact, peers = "metrics/test_metrics_exact.py", "metrics/test_metrics_peers.py"
    metrics = {
        "error": ("1 − `accuracy`", exact),
        "NLL": ("`nll`", exact),
        "ECE": ("15 bins of equal width", exact),
        "MCE": ("15 bins of equal width", exact),
        "ACE": ("15 bins of equal mass of the confidence; the paper's appendix is not at hand", peers),
        "classwise ECE": ("15 bins of equal width, mean over classes", exact),
        "SECE": ("h = 0.01", "metrics/test_metrics_smooth.py"),
    }
    rows += [(item, what, _pytest(path), NO_RUNS) for item, (what, path) in metrics.items()]
    positive = [f"published-{name}" for name in ("min-max", "sigmoid", "relu", "softplus")]
    ablate = "python -m studies ablate meta-reg --dataset cifar10 --data DIR"
    rows.append(("Section 4.1, other ways to keep γ positive", "`published-…`", ablate, _images(positive)))
    search = "python -m studies sweep meta-reg --quick"
    rows.append(("Section 5, grid search of h", "on digits, validation part", search, _exists("meta-reg-sweep.json")))
    return to_markdown(HEADINGS, [[a, b, f"`{c}`", d] for a, b, c, d in rows])


def _pytest(path: str) -> str:
    return f"python -m pytest tests/{path}"


def _reproduce(method: str) -> str:
    return f"python -m studies reproduce meta-reg --dataset cifar10 --data DIR --methods {method}"


def _synthetic(method: str) -> str:
    """The number of seeds of a method of the first paper."""
    records = [*stored("bo4sc").records, *stored("bo4sc-more-seeds").records]
    return count(min(len(by_seed(records, "accuracy", dataset=name, method=method)) for name in BLOBS), "seed")


def seeds_of(name: str, methods: Sequence[str]) -> list[int]:
    """The number of seeds of each method on a data set, short recipe."""
    files = [path.stem for path in RESULTS.glob("meta-reg-*.json")]
    records = [r for file in files for r in stored(file).records if r["dataset"] == name and not r["failure"]]
    short = [r for r in records if r["recipe"] == "short"]
    return [len({r["seed"] for r in short if r["method"] == method}) for method in methods]


def _one_set(name: str, methods: Sequence[str]) -> str:
    seeds = seeds_of(name, methods)
    return _in_words(seeds) if all(seeds) or not any(seeds) else f"{sum(map(bool, seeds))} of {len(seeds)} methods"


def _images(methods: Sequence[str]) -> str:
    """The number of seeds on each data set of the paper, 30 epochs."""
    return "; ".join(f"{DATASETS[name].title} {_one_set(name, methods)}" for name in IMAGES)


def _in_words(seeds: Iterable[int]) -> str:
    low, high = min(numbers := list(seeds)), max(numbers)
    if not high:
        return NONE
    return count(low, "seed") if low == high else f"{low} to {high} seeds"


def _paper_recipe() -> str:
    records = stored("meta-reg-350").records
    methods = dict.fromkeys(r["method"] for r in records)
    return f"CIFAR-10, 1 seed: {', '.join(f'`{m}`' for m in methods)}; other methods and sets {NONE}"


def _exists(name: str) -> str:
    return f"`results/{name}`" if (RESULTS / name).exists() else NONE


SECTIONS = {"coverage-first": first_paper, "coverage-second": second_paper}
