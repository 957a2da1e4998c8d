"""The example's model: two ranks end where one process with the whole batch ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.procs.jobs import run

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "torch_mnist.py")


def train(tmp_path: Path, ranks: int, batch: int, lr: float) -> dict[str, float]:
    result = tmp_path / f"{ranks}.json"
    arguments = ["--data", "mnist", "--epochs", "1", "--limit", "1920", "--no-compare", "--json", str(result)]
    code, out, err = run(
        ["-np", str(ranks), EXAMPLE, *arguments, "--batch-size", str(batch), "--lr", str(lr)], OMP_NUM_THREADS="1"
    )
    assert code == 0, err
    assert "held-out accuracy" in out and "images/s" in out and "waiting" in err
    loaded: dict[str, float] = json.loads(result.read_text())
    return loaded


@pytest.mark.slow
def test_two_ranks_equal_one_process_with_the_whole_batch(tmp_path: Path) -> None:
    two = train(tmp_path, 2, 32, 0.02)
    one = train(tmp_path, 1, 64, 0.04)
    assert two["size"] == 2 and one["size"] == 1
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-3)
    assert two["accuracy"] > 0.7 and one["accuracy"] > 0.7
