"""docs/own-models.md runs, and shows the numbers of the stored study."""

import re
from pathlib import Path

from calibrant.experiments.networks.page import LABELS, cases_of
from calibrant.report import read_results

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/own-models.md").read_text()


def test_the_code_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
    assert len(blocks) >= 9
    names = {}
    exec(compile("\n".join(blocks), "docs/own-models.md", "exec"), names)
    assert names["result"].probs(names["x"]).shape == (300, 3)
    assert names["curve"]
    assert not (tmp_path / "checkpoints").exists()


def test_the_table_shows_the_stored_results():
    table, stored = TEXT.split("<!-- networks -->\n")[1].split("<!-- /networks -->")[0], ROOT / "results/networks.json"
    if not stored.exists():
        assert not table.strip()  # no number without a stored result
        return
    cases = cases_of(read_results(stored).records)
    for case in cases:
        own = case.difference
        told = f"| {case.task} | {LABELS[case.start]} | {len(case.records)} | {case.mean('fit', 'nll'):.3f} | "
        told += f"{case.mean('plain', 'nll'):.3f} | {own.value:+.1%} ({own.low:+.1%} to {own.high:+.1%}) |"
        assert told in table
