"""One suite of collective behaviour over (world kind x transport x library x dtype x size)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from farandole.world import World
from tests.contract.cases import CASES, REDUCIBLE, Rank
from tests.contract.libraries import LIBRARIES
from tests.contract.processes import ProcessWorlds

MIB = 1 << 18  # elements of float32
SIZES = (0, 1, 7, 1001, MIB, 3 * MIB + 5)  # nothing, one, odd, small, 1 MiB, more than one chunk of anything
TRANSPORTS = ("loopback", "shm", "tcp")


@pytest.fixture(scope="module")
def process_worlds() -> Iterator[ProcessWorlds]:
    worlds = ProcessWorlds()
    for transport in ("shm", "tcp"):
        worlds.get(3, transport)
    worlds.get(2, "shm")
    yield worlds
    worlds.close()


def run(world: World, library: str, case: str, dtype: str, n: int) -> None:
    lib = LIBRARIES[library]
    CASES[case](Rank(lib.ops(world), lib, world.rank, world.size), dtype, n)


@pytest.mark.parametrize("size", (1, 2, 3, 8))
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_threads(ranks: Callable[..., list[object]], transport: str, size: int) -> None:
    """Every case at an odd size; ranks are threads."""

    def body(world: World) -> None:
        for case in CASES:
            for n in (7, 5003) if size < 8 else (7,):
                run(world, "numpy", case, "float32", n)

    ranks(size, body, transport)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_dtypes(ranks: Callable[..., list[object]], transport: str, library: str) -> None:
    """Every case for every dtype, small (with the announcement) and larger (moved by the collective)."""

    def body(world: World) -> None:
        for dtype in (d for d in REDUCIBLE if d in LIBRARIES[library].dtypes):
            for case in CASES:
                for n in (1, 4099):
                    run(world, library, case, dtype, n)

    ranks(3, body, transport)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sizes(ranks: Callable[..., list[object]], transport: str, n: int) -> None:
    def body(world: World) -> None:
        for case in CASES:
            if n < MIB or case not in ("any_order", "threads_share_a_world", "mismatch", "allgather_uneven"):
                run(world, "numpy", case, "float32", n)

    ranks(2, body, transport)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("size", "transport"), [(2, "shm"), (3, "shm"), (3, "tcp")])
def test_processes(process_worlds: ProcessWorlds, size: int, transport: str, case: str) -> None:
    """The same cases on real processes."""
    world = process_worlds.get(size, transport)
    assert world.transports == [transport]
    for library in LIBRARIES:
        for n in (0, 1, 1001, MIB + 3):
            world.run(case, library, "float32", n)
        world.run(case, library, "bfloat16" if library == "torch" else "float16", 4099)
