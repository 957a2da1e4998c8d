"""Who and where this rank is in the default world; the same functions in every framework's module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import farandole.world as _world
from farandole.bridge.ops import GlobalProcessSet
from farandole.world import ProcessSet


def rank() -> int:
    """This rank's number, from 0 to `size() - 1`. NotInitializedError before `init()`, as for all below."""
    return _world.world().rank


def size() -> int:
    """How many ranks there are."""
    return _world.world().size


def local_rank() -> int:
    """This rank's number among the ranks of its host."""
    return _world.world().local_rank


def local_size() -> int:
    """How many ranks this rank's host has."""
    return _world.world().local_size


def cross_rank() -> int:
    """This host's number among the hosts that have a rank with this local rank."""
    return _world.world().cross_rank


def cross_size() -> int:
    """How many hosts have a rank with this local rank."""
    return _world.world().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have equally many ranks."""
    return len(set(Counter(_world.world().hosts).values())) == 1


def add_process_set(ranks: Iterable[int] | Any) -> ProcessSet:
    """Make a process set of these ranks of the default world, for use as `process_set` argument.

    ranks: global ranks, or an object with such a `ranks` attribute. Collective: every rank of the world calls
    it with the same ranks. ValueError for an empty list, a repeated or an unknown rank.
    """
    return _world.world().add_process_set(getattr(ranks, "ranks", ranks))


__all__ = [
    "GlobalProcessSet",
    "ProcessSet",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "is_homogeneous",
    "local_rank",
    "local_size",
    "rank",
    "size",
]
