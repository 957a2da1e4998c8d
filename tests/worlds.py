"""Ranks as threads of this process, over any transport."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from farandole import config
from farandole.errors import FarandoleError
from farandole.rendezvous import store
from farandole.rendezvous.detect import Place
from farandole.world import World, connect, loopback_worlds


def connected_worlds(size: int, transport: str, **options: str) -> list[World]:
    """Worlds of `size` threads that met through a store, like processes do. transport: "shm" or "tcp"."""
    secret, job = store.new_secret(), store.new_job_id()
    server = store.StoreServer(secret, job)
    chosen = config.load({"FARANDOLE_TRANSPORT": transport, **options})
    made: list[World | None] = [None] * size
    errors: list[BaseException] = []

    def make(rank: int) -> None:
        place = Place(
            rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1,
            store_address=server.address, job=job, secret=secret,
        )  # fmt: skip
        try:
            made[rank] = connect(place, chosen)
        except BaseException as error:
            errors.append(error)

    try:
        _run_threads(size, make)
    finally:
        server.close()
    if errors:
        raise errors[0]
    return [w for w in made if w is not None]


def run_ranks(size: int, fn: Callable[[World], Any], transport: str = "loopback", **options: str) -> list[Any]:
    """fn(world) on every rank at once; the results by rank, or the first error that is a cause."""
    worlds = (
        loopback_worlds(size, config.load(options))
        if transport == "loopback"
        else connected_worlds(size, transport, **options)
    )
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = fn(worlds[rank])
        except BaseException as error:
            errors.append(error)
            worlds[rank].abort(f"{type(error).__name__}: {error}")

    _run_threads(size, run)
    for w in worlds:
        w.shutdown()
    if errors:
        raise next((e for e in errors if not isinstance(e, FarandoleError)), errors[0])
    return results


def _run_threads(size: int, target: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=target, args=(r,), daemon=True) for r in range(size)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(100)
        assert not t.is_alive(), "a rank hangs"
