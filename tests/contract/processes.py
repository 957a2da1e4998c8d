"""Worlds of real processes that live through a whole test session, so that a case costs no start."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from farandole.rendezvous import store

ROOT = Path(__file__).resolve().parents[2]


class ProcessWorld:
    def __init__(self, size: int, transport: str) -> None:
        secret, job = store.new_secret(), store.new_job_id()
        server = store.StoreServer(secret, job)
        base = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "FARANDOLE_TRANSPORT": transport,
            "FARANDOLE_SIZE": str(size),
            "FARANDOLE_LOCAL_SIZE": str(size),
            "FARANDOLE_CROSS_SIZE": "1",
            "FARANDOLE_CROSS_RANK": "0",
            "FARANDOLE_STORE_ADDRESS": server.address,
            "FARANDOLE_JOB": job,
            "FARANDOLE_SECRET": secret,
            "FARANDOLE_EPOCH": "0",
        }
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.contract.rank"],
                env={**base, "FARANDOLE_RANK": str(r), "FARANDOLE_LOCAL_RANK": str(r)},
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for r in range(size)
        ]
        self.transports = self._answers()[0]["transports"]
        server.close()

    def run(self, case: str, library: str, dtype: str, n: int) -> None:
        order = json.dumps({"case": case, "library": library, "dtype": dtype, "n": n}) + "\n"
        for p in self.ranks:
            assert p.stdin
            p.stdin.write(order.encode())
            p.stdin.flush()
        errors = [f"rank {r}: {a['error']}" for r, a in enumerate(self._answers()) if a["error"]]
        assert not errors, "\n".join(errors)

    def _answers(self) -> list[dict[str, object]]:
        answers = []
        for r, p in enumerate(self.ranks):
            assert p.stdout
            ready, _, _ = select.select([p.stdout], [], [], 100)
            assert ready, f"rank {r} does not answer"
            line = p.stdout.readline()
            assert line, f"rank {r} died with {p.wait(10)}"
            answers.append(json.loads(line))
        return answers

    def close(self) -> None:
        for p in self.ranks:
            assert p.stdin and p.stdout
            p.stdin.close()
        for p in self.ranks:
            try:
                code = p.wait(20)
            finally:
                p.kill()
                p.stdout.close()
            assert code == 0, f"a rank ended with {code}"


class ProcessWorlds:
    """Worlds by (size, transport), started when first asked for."""

    def __init__(self) -> None:
        self._worlds: dict[tuple[int, str], ProcessWorld] = {}

    def get(self, size: int, transport: str) -> ProcessWorld:
        key = (size, transport)
        if key not in self._worlds:
            self._worlds[key] = ProcessWorld(size, transport)
        return self._worlds[key]

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()
