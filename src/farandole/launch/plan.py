"""Which rank runs where. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farandole.errors import LaunchError


@dataclass(frozen=True, slots=True)
class Slot:
    """One rank's place, as FARANDOLE_* variables tell it."""

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def environment(self) -> dict[str, str]:
        numbers = {
            "RANK": self.rank,
            "SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_SIZE": self.local_size,
            "CROSS_RANK": self.cross_rank,
            "CROSS_SIZE": self.cross_size,
        }
        return {f"FARANDOLE_{name}": str(value) for name, value in numbers.items()}


def assign(ranks: int, hosts: Sequence[tuple[str, int]]) -> list[Slot]:
    """Fill the hosts, each given with its number of slots, in order. LaunchError when they are too few.

    cross_rank counts the hosts that have this local rank, as Horovod does.
    """
    room = sum(slots for _, slots in hosts)
    if ranks < 1:
        raise LaunchError(f"the number of processes must be at least 1, not {ranks}")
    if ranks > room:
        raise LaunchError(f"{ranks} processes asked for, but the hosts have {room} slots")
    used: list[tuple[str, int]] = []
    left = ranks
    for host, slots in hosts:
        if left and slots:
            used.append((host, min(slots, left)))
            left -= used[-1][1]
    made: list[Slot] = []
    for index, (host, count) in enumerate(used):
        for local in range(count):
            cross = [i for i, (_, n) in enumerate(used) if n > local]
            made.append(Slot(host, len(made), ranks, local, count, cross.index(index), len(cross)))
    return made
