"""Jobs of real processes, each with a deadline and a mark by which to find what it leaves."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

SECONDS = 60


class Job:
    """A running `farandole run`."""

    def __init__(self, arguments: Sequence[str], **environment: str) -> None:
        self.mark = f"MARK_{secrets.token_hex(8)}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "farandole", "run", *arguments],
            env={**os.environ, **environment, self.mark: "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # read_until must not read more than it looks at
        )

    def finish(self) -> tuple[int, str, str]:
        """Wait for the end: exit code, stdout, stderr. Nothing of the job may be left."""
        try:
            out, err = self.process.communicate(timeout=SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe:
                    pipe.close()
        self.assert_gone()
        return self.process.returncode, out.decode(errors="replace"), err.decode(errors="replace")

    def read_until(self, word: str) -> None:
        """Wait for a line of stdout with this word."""
        assert self.process.stdout
        for line in self.process.stdout:
            if word.encode() in line:
                return
        raise AssertionError(f"the job ended without saying {word!r}")

    def left(self) -> list[int]:
        """Processes of this job that are alive, but for the launcher."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == self.process.pid:
                continue
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def assert_gone(self) -> None:
        deadline = time.monotonic() + 10
        while left := self.left():
            assert time.monotonic() < deadline, f"processes {left} survived their job"
            time.sleep(0.01)


def run(arguments: Sequence[str], **environment: str) -> tuple[int, str, str]:
    return Job(arguments, **environment).finish()


def script(tmp_path: Path, text: str) -> str:
    """A program for every rank, with the usual imports."""
    path = tmp_path / "program.py"
    path.write_text(f"import os, signal, sys, time\nimport numpy as np\n{text}\n")
    return str(path)
