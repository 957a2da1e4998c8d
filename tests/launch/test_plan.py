"""Which rank runs where."""

from __future__ import annotations

import pytest

from farandole.errors import LaunchError
from farandole.launch.plan import Slot, assign


def test_hosts_are_filled_in_order() -> None:
    got = assign(5, [("a", 2), ("empty", 0), ("b", 1), ("c", 4), ("unused", 9)])
    assert got == [
        Slot("a", 0, 5, 0, 2, 0, 3),
        Slot("a", 1, 5, 1, 2, 0, 2),  # only a and c have a second rank
        Slot("b", 2, 5, 0, 1, 1, 3),
        Slot("c", 3, 5, 0, 2, 2, 3),
        Slot("c", 4, 5, 1, 2, 1, 2),
    ]
    assert got[3].environment()["FARANDOLE_CROSS_RANK"] == "2"


@pytest.mark.parametrize(("ranks", "says"), [(0, "at least 1, not 0"), (4, "the hosts have 3 slots")])
def test_what_cannot_be_placed(ranks: int, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        assign(ranks, [("a", 2), ("b", 1)])
