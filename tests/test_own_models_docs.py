"""docs/own-models.md runs."""

import re
from pathlib import Path

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
