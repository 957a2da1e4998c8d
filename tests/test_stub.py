"""The committed stub of the core is what its source says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STUB = Path(__file__).resolve().parents[1] / "src" / "farandole" / "_core.pyi"


def test_the_stub_is_fresh(tmp_path: Path) -> None:
    made = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "farandole._core", "-o", str(made)]
    subprocess.run(command, check=True, timeout=60, cwd=tmp_path)
    subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-q", "--line-length", "120", str(made)], check=True, timeout=60
    )
    assert made.read_text() == STUB.read_text(), "run the stub command of CONTRIBUTING.md"
