"""A rank's place, from environments good and bad."""

from __future__ import annotations

import pytest

from farandole.errors import RendezvousError
from farandole.launch import plan
from farandole.rendezvous.detect import Place, detect

SECRET = "5ec2e7" * 8
GOOD = {
    "FARANDOLE_RANK": "1", "FARANDOLE_SIZE": "4", "FARANDOLE_LOCAL_RANK": "1", "FARANDOLE_LOCAL_SIZE": "2",
    "FARANDOLE_CROSS_RANK": "0", "FARANDOLE_CROSS_SIZE": "2", "FARANDOLE_STORE_ADDRESS": "h:1", "FARANDOLE_JOB": "j",
    "FARANDOLE_SECRET": SECRET, "FARANDOLE_EPOCH": "3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, Place(0, 1, 0, 1, 0, 1)),
        ({"FARANDOLE_TRANSPORT": "tcp", "FARANDOLE_SECRET": "?"}, Place(0, 1, 0, 1, 0, 1)),
        (GOOD, Place(1, 4, 1, 2, 0, 2, "h:1", "j", SECRET, 3)),
        (GOOD | {"FARANDOLE_RANK": "3", "FARANDOLE_EPOCH": "0"}, Place(3, 4, 1, 2, 0, 2, "h:1", "j", SECRET, 0)),
    ],
)
def test_places(environ: dict[str, str], place: Place) -> None:
    assert detect(environ) == place


@pytest.mark.parametrize("name", GOOD)
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(RendezvousError, match=f"{name} is not set"):
        detect({k: v for k, v in GOOD.items() if k != name})


NUMBERS = [name for name in GOOD if name.endswith(("RANK", "SIZE", "EPOCH"))]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["", "-1", "x", "1.0", "²", "1" * 5000, str(1 << 31), str(1 << 64)])
def test_a_bad_number_is_named(name: str, value: str) -> None:
    with pytest.raises(RendezvousError, match=f"{name}=.*expected a whole number from [01] to"):
        detect({**GOOD, name: value})


@pytest.mark.parametrize("name", [n for n in NUMBERS if n != "FARANDOLE_EPOCH"])
def test_ranks_are_below_their_sizes_and_sizes_are_not_zero(name: str) -> None:
    value = GOOD[name.replace("RANK", "SIZE")] if name.endswith("RANK") else "0"
    with pytest.raises(RendezvousError, match=f"{name}='{value}'"):
        detect({**GOOD, name: value})


@pytest.mark.parametrize("secret", ["", SECRET + "a", "not hexadecimal " + SECRET])
def test_a_bad_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(RendezvousError, match="FARANDOLE_SECRET: expected hexadecimal") as caught:
        detect({**GOOD, "FARANDOLE_SECRET": secret})
    assert not secret or secret not in str(caught.value)


def test_the_secret_is_in_no_text() -> None:
    place = detect(GOOD)
    assert not [text for text in (repr(place), str(place), f"{place}", f"{place!r}") if SECRET in text]


def test_what_the_launcher_says_is_understood() -> None:
    rest = {k: v for k, v in GOOD.items() if k.rsplit("_", 1)[1] not in ("RANK", "SIZE")}
    for slot in plan.assign(5, [("a", 3), ("b", 2)]):
        found = detect({**rest, **slot.environment()})
        assert (found.rank, found.size, found.local_rank, found.local_size, found.cross_rank, found.cross_size) == (
            slot.rank, slot.size, slot.local_rank, slot.local_size, slot.cross_rank, slot.cross_size,
        )  # fmt: skip
