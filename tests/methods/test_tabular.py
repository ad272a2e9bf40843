"""Networks for tables: embedded columns, plain networks, wide rows, and rows that occur many times."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from calibrant.bilevel import L2, Adam, Bilevel, Population, Truncated, cosine, solve
from calibrant.data.projection import AXES
from calibrant.methods import Mixture, Samples, SelfCalibrated, Task, fit_all, tabular
from calibrant.methods.core.method import build
from calibrant.methods.crossfit.crossfit import fold_tasks
from calibrant.methods.crossfit.folds import grouped
from calibrant.methods.self_calibrated import FEW_CASES, SHORT, Candidate, weighed
from calibrant.methods.tabular import ROWS_PER_COLUMN, WIDE, Rotated, column_strengths, merged_copies, wide_axes
from calibrant.models import mlp
from calibrant.models.architectures.mlp import EmbeddingLayer


def table(rows: int = 40, columns: int = 3, seed: int = 0) -> Task:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    labels = (x[:, 0] + 0.5 * torch.randn(rows, generator=generator) > 0).long()
    return Task(Samples(x, labels), None, 2, seed)


def fitted(task: Task, **settings: object) -> Mixture:
    found = SelfCalibrated(hidden=(4,), epochs=20, folds=2, **settings).fit(task)  # type: ignore[arg-type]
    assert isinstance(found, Mixture)
    return found


@pytest.fixture(scope="module")
def both() -> Mixture:
    """Two networks that embed columns, and two that do not."""
    return fitted(table())


def first_layers(found: Mixture) -> list[type[nn.Module]]:
    return [type(next(iter(net.problem.view.module.children()))) for net in found.networks]


def test_without_embedding_networks_are_exactly_plain_perceptrons() -> None:
    task = table()
    found = fitted(task, embedding=None)
    parts = fold_tasks(task, 2, repeats=2)
    model = mlp(3, 2, hidden=(4,), activation="silu", seed=parts[0].seed)
    first = Bilevel(model, L2(model), **parts[0].streams(None), seed=parts[0].seed)
    others = [first.replicate(first.view.draw(p.seed), **p.streams(None), seed=p.seed) for p in parts[1:]]
    expected = solve(
        Population([first, *others], tied=[0] * 4),
        hypergradient=Truncated(10, 5),
        inner_optimizer=Adam(cosine(0.02, 30, final=0.001)),
        outer_optimizer=Adam(0.2),
        outer_steps=2,
    )
    for k, network in enumerate(found.networks):
        assert torch.equal(network.params, expected.params[k])
        assert torch.equal(network.phi, expected.phi[k])
    assert found.shares is None


def test_networks_of_every_second_deal_embed_the_columns(both: Mixture) -> None:
    assert first_layers(both) == [EmbeddingLayer] * 2 + [nn.Linear] * 2
    assert both.shares is not None
    assert both.shares[0] + both.shares[2] == 1
    assert [net.phi.numel() for net in both.networks][2:] == [2, 2]  # plain: one strength per layer
    assert both.networks[0].phi.numel() == 3  # one strength per matrix: too few rows for a factor per column


def test_columns_have_factors_where_there_are_rows_enough() -> None:
    model = mlp(3, 2, hidden=(4,), seed=0)
    few, enough = (column_strengths(model, rows) for rows in (3 * ROWS_PER_COLUMN - 1, 3 * ROWS_PER_COLUMN))
    assert sum(p.numel() for p in few.parameters()) == 2  # one strength per matrix
    assert sum(p.numel() for p in enough.parameters()) == 2 + 3  # and a factor per column in the first
    grouped = column_strengths(model, 3 * ROWS_PER_COLUMN, groups=6)
    assert sum(p.numel() for p in grouped.parameters()) == 2  # a group is one row


def test_a_single_split_embeds_and_own_models_stay_unchanged() -> None:
    assert first_layers(fitted(table(), repeats=1)) == [EmbeddingLayer] * 2
    own = Task(table().train, None, 2, 0, model=lambda seed: mlp(3, 2, hidden=(2,), seed=seed))
    assert first_layers(fitted(own)) == [nn.Linear] * 4


def test_tasks_run_together_as_they_run_alone() -> None:
    tasks = [table(seed=seed) for seed in range(2)]
    method = SelfCalibrated(hidden=(4,), epochs=20, folds=2)
    together = fit_all([(method, task) for task in tasks])
    for task, found in zip(tasks, together, strict=True):
        np.testing.assert_allclose(found.probs(task.train.inputs), method.fit(task).probs(task.train.inputs), atol=1e-3)


def test_axes_of_wide_rows_keep_all_inner_products() -> None:
    x = table(20, 50).train.inputs
    axes = wide_axes(x)
    assert axes is not None
    assert axes.shape == (50, 20)
    turned = x @ axes
    torch.testing.assert_close(turned @ turned.T, x @ x.T / x.square().sum() * turned.numel(), rtol=1e-4, atol=1e-4)
    assert wide_axes(x[:, :20]) is None


def test_many_columns_are_shown_along_their_principal_axes() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(700, 3, generator=random) @ torch.randn(3, 600, generator=random)
    x += 0.01 * torch.randn(700, 600, generator=random)
    axes = wide_axes(x)
    assert axes is not None
    assert axes.shape == (600, AXES)
    spread = (x @ axes).square().mean(0)
    assert spread[-3:].sum() > 0.99 * spread.sum()  # the three directions that the rows vary in, largest last
    assert float(spread.mean()) == pytest.approx(1, abs=1e-3)
    assert wide_axes(x[:, :WIDE]) is None


def test_the_axes_of_many_wide_rows_are_those_of_fewer(monkeypatch) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(700, 200, generator=random) @ torch.randn(200, 600, generator=random) ** 3
    x += 0.01 * torch.randn(700, 600, generator=random)
    exact = wide_axes(x)
    monkeypatch.setattr(tabular, "MOST_SIDE", 500)
    quick = wide_axes(x)
    assert exact is not None
    assert quick is not None
    assert quick.shape == exact.shape == (600, AXES)
    assert float((x @ quick).square().mean()) == pytest.approx(1, abs=0.01)
    basis = torch.linalg.qr(quick).Q
    kept, best = (x @ basis).square().sum(), (x @ torch.linalg.qr(exact).Q).square().sum()
    assert 0.97 * best < kept <= 1.001 * best


def test_wide_rows_train_small_networks_that_take_the_columns() -> None:
    task = table(20, 50)
    found = fitted(task)
    assert all(isinstance(net, Rotated) for net in found.networks)
    assert found.networks[0].problem.view.shapes[0] == (4, 20)
    assert {net.phi.numel() for net in found.networks} == {2}  # no factors: there would be one for each row
    inputs = task.train.inputs
    direct = found.networks[0].solution.logits(inputs @ found.networks[0].axes)
    torch.testing.assert_close(found.networks[0].logits(inputs), direct)
    assert found.probs(inputs).shape == (20, 2)
    assert found._perceptrons is not None
    each = [net.logits(inputs).double() for net in found.networks]
    np.testing.assert_allclose(found.mean(inputs), torch.stack(each).mean(0), rtol=1e-4, atol=1e-5)


def test_a_kind_that_broke_down_is_left_out() -> None:
    class Broken:
        failures: dict[int, str] = {}  # noqa: RUF012
        heads: tuple["Broken", ...] = ()

        def __init__(self, reason: str | None) -> None:
            own = Broken.__new__(Broken)
            own.failures = {0: reason} if reason else {}
            self.heads = (own,)

    sound, broken = Broken(None), Broken("infinite loss")
    assert weighed([sound, broken]) is sound  # type: ignore[list-item]
    assert weighed([broken, sound]) is sound  # type: ignore[list-item]


def test_the_mean_follows_the_shares(both: Mixture) -> None:
    inputs: Tensor = table(seed=3).train.inputs
    assert both.shares is not None
    each = [net.logits(inputs).double() for net in both.networks]
    expected = sum(s * z for s, z in zip(both.shares, each, strict=True)) / sum(both.shares)
    np.testing.assert_allclose(both.mean(inputs), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both.mean(inputs.numpy()), both.mean(inputs))
    together = both._perceptrons
    assert together is not None
    assert [len(stack.shares) for stack in together.stacks] == [2, 2]
    np.testing.assert_allclose(both.probs(inputs).sum(1), 1)


def how_solved(labels: Tensor, columns: int = 3, n_classes: int = 2) -> tuple[int, int]:
    """The number of training steps, and the number that the hypergradient goes through."""
    generator = torch.Generator().manual_seed(0)
    task = Task(Samples(torch.randn(len(labels), columns, generator=generator), labels), None, n_classes, 0)
    method = Candidate(SelfCalibrated(hidden=(2,)))
    parts = list(method.parts(task))[:1]
    how = method.solving(build([method], parts))
    assert isinstance(how.hypergradient, Truncated)
    return how.steps[0], how.hypergradient.last


def test_tables_that_are_soon_learned_train_for_fewer_steps() -> None:
    even = torch.arange(800) % 2
    rare = torch.arange(800) < FEW_CASES
    assert how_solved(even) == (800, 5)
    assert how_solved(rare.long()) == (400, 5)  # a fold trains on fewer than all of them
    assert how_solved(1 - rare.long()) == (400, 5)
    assert how_solved((torch.arange(800) < 2 * FEW_CASES).long()) == (800, 5)


def test_hypergradients_are_short_where_steps_are_costly() -> None:
    even = torch.arange(500) % 2
    assert how_solved(even, columns=240)[1] == 5
    assert how_solved(even, columns=260)[1] == SHORT  # fewer than two rows per column
    assert how_solved(even[:100], columns=60)[1] == 5  # the same, but a step takes little time
    assert how_solved(torch.arange(800) % 100, n_classes=100) == (800, 5)
    assert how_solved(torch.arange(808) % 101, n_classes=101) == (400, SHORT)


QUICK = SelfCalibrated(hidden=(4,), epochs=20, members=("network", "trees", "linear"))


def drawn(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 3, generator=generator)
    return inputs, (inputs[:, 0] + torch.randn(n, generator=generator) > 0).long()


def test_copies_are_merged_and_keep_their_weight():
    inputs, labels = drawn()
    order = torch.cat([torch.arange(60), torch.arange(30), torch.arange(10)])
    labels = torch.cat([labels, labels[:30], 1 - labels[:10]])  # the last copies have another label
    task, positions = merged_copies(grouped(Task(Samples(inputs[order], labels), None, 2, 0)))
    assert len(task.train) == 70
    weights = task.train.sample_weight.numpy()
    assert weights.mean() == pytest.approx(1)
    assert weights / weights[-1] == pytest.approx(np.repeat([2.0, 1.0], [30, 40]))
    assert task.train.inputs[positions].equal(inputs[order])
    assert task.train.labels[positions].equal(labels)
    assert task.train.groups[:10].equal(task.train.groups[60:])  # equal inputs still share a fold


@pytest.mark.parametrize("change", ["few copies", "chance", "validation", "splits"])
def test_other_tasks_stay_as_they_are(change):
    inputs, labels = drawn()
    rows = torch.arange(60).repeat(1 if change == "few copies" else 3)
    rows = torch.cat([rows, rows[:5]])
    inputs = inputs.sign() if change == "chance" else inputs
    part = Samples(inputs[rows], labels[rows])
    task = grouped(Task(part, part if change == "validation" else None, 2, 0))
    task = replace(task, splits=((np.arange(100), np.arange(100, 185)),)) if change == "splits" else task
    same, positions = merged_copies(task)
    assert same is task
    assert positions is None


def test_repeating_every_row_gives_the_same_classifier():
    inputs, labels = drawn()
    once = QUICK.fit(Task(Samples(inputs, labels, torch.ones(60)), None, 2, 0))
    thrice = QUICK.fit(Task(Samples(inputs.repeat(3, 1), labels.repeat(3)), None, 2, 0))
    assert thrice.probs(inputs).numpy() == pytest.approx(once.probs(inputs).numpy(), abs=1e-4)
    for name in ("held_out", "suspicion"):
        expected = torch.cat([once.extras[name]] * 3)
        assert thrice.extras[name].numpy() == pytest.approx(expected.numpy(), abs=1e-4)
