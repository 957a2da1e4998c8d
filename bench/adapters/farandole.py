"""farandole as a peer of the side-by-side bench: numpy arrays made by the bench, or made in registered memory."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import farandole
from farandole.world import ProcessSet, World

DTYPES = ("f32", "f16", "bf16")
_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_ITEM = {"f32": 4, "f16": 2, "bf16": 2}

world: World
everyone: ProcessSet


def init() -> tuple[int, int]:
    global world, everyone
    world = farandole.init()
    everyone = world.world_set
    if os.environ.get("BENCH_REGISTERED"):
        # The bench's worker is the main script; its buffers then come from here.
        def alloc(dtype: str, n: int) -> np.ndarray:
            raw = world.empty(n * _ITEM[dtype])
            return raw.view({"f32": "f4", "f16": "f2", "bf16": "u2"}[dtype])

        vars(sys.modules["__main__"])["alloc"] = alloc
    return world.rank, world.size


def version() -> str:
    memory = "registered" if os.environ.get("BENCH_REGISTERED") else "ordinary"
    return f"farandole {farandole.__version__} ({memory} memory, {', '.join(set(world.transports().values()))})"


def wrap(a: np.ndarray, dtype: str) -> Any:
    return a, _NAMES[dtype], a.ctypes.data


def _run(kind: str, source: Any, into: int, **more: Any) -> Any:
    array, dtype, address = source
    handle = world.submit(
        kind, name=kind, process_set=everyone, dtype=dtype, shape=array.shape, input=address, output=into,
        keep=source, sync=True, **more,
    )  # fmt: skip
    handle.wait()
    return handle


def allreduce(t: Any) -> None:
    _run("allreduce", t, t[2])


def broadcast(t: Any) -> None:
    _run("broadcast", t, t[2], root=0)


def reduce_scatter(s: Any, d: Any) -> None:
    _run("reducescatter", s, d[2])


def allgather(s: Any, d: Any) -> None:
    d[0].view("u1")[:] = _run("allgather", s, 0).output()


def alltoall(s: Any, d: Any) -> None:
    n = len(s[0]) // world.size
    d[0].view("u1")[:] = _run("alltoall", s, 0, splits=(n,) * world.size).output()


def close() -> None:
    farandole.shutdown()
