"""Worlds for tests, and guards: a test that leaves a thread, a descriptor, a child or a file in /dev/shm is red."""

from __future__ import annotations

import faulthandler
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

DEADLINE_SECONDS = 120


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
    return {fd: to for fd, to in found.items() if "/proc/" not in to and "/dev/" not in to and not to.startswith("/")}


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found |= {int(p) for p in (task / "children").read_text().split()}
        except OSError:
            continue  # the thread has just ended
    return found


def _state() -> tuple[set[str], dict[str, str], set[int], set[str]]:
    return {t.name for t in threading.enumerate()}, _descriptors(), _children(), set(os.listdir("/dev/shm"))


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test opened it closes. Long-lived helpers (session fixtures) are made before the first look."""
    for name in ("process_worlds",):
        if name in request.fixturenames:
            request.getfixturevalue(name)
    faulthandler.dump_traceback_later(DEADLINE_SECONDS, exit=True)
    before = _state()
    native = len(os.listdir("/proc/self/task"))
    yield
    deadline = time.monotonic() + 3
    while True:  # threads and sockets may need a moment to go
        after = _state()
        left = [sorted(set(a) - set(b)) for a, b in zip(after, before, strict=True)]
        more = len(os.listdir("/proc/self/task")) - native
        if not any(left) or time.monotonic() > deadline:
            break
        gc.collect()
        time.sleep(0.02)
    faulthandler.cancel_dump_traceback_later()
    names = ("threads", "descriptors", "child processes", "files in /dev/shm")
    leaks = [
        f"{what}: {[after[1].get(x, x) for x in some] if i == 1 else some}"
        for i, (what, some) in enumerate(zip(names, left, strict=True))
        if some
    ]
    assert not leaks, f"the test left {'; '.join(leaks)} ({more} native threads more than before)"


@pytest.fixture
def ranks() -> Callable[..., list[Any]]:
    """ranks(n, fn, transport="loopback"): runs fn(world) in n threads, each a rank; the results in rank order."""
    from tests.worlds import run_ranks

    return run_ranks
