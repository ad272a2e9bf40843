"""Tests of docs/images.md: its code runs, and its table lists every loss."""

from pathlib import Path

import pytest

from calibrant.losses import LOSSES
from tests.studies.images import cases

from .test_own_images import write_image

TEXT = (Path(__file__).parents[3] / "docs" / "images.md").read_text()


@pytest.mark.filterwarnings("ignore:.* images, but .*Fashion-MNIST has")
def test_the_examples_run(tmp_path, monkeypatch):
    cases.write_idx(tmp_path, "fashion-mnist", True)
    for row in range(60):
        write_image(tmp_path / "photos" / ("cat" if row % 2 else "dog") / f"{row}.png", (20 + row % 3, 24), row)
    monkeypatch.chdir(tmp_path)
    names = {"folder": tmp_path}
    for block in TEXT.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "images.md", "exec"), names)
    assert names["evaluation"].models["model"].n_classes == 2
    assert names["soft_targets"].shape == (32, 10)
    assert 0 <= names["solution"].outer_variables()["centre"] <= 5


def test_every_loss_is_in_the_table():
    rows = TEXT.split("## Training losses")[1].split("```")[0].splitlines()
    assert [row.split("`")[1] for row in rows if row.startswith("| `")] == list(LOSSES)
