"""The tree of errors is as drawn, and native codes find their class."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from farandole import errors

DRAWN = re.compile(r"^ {4}(?P<indent>[│├└─ ]*)(?P<name>\w+Error)(?: \(also a (?P<also>\w+)\))?", re.MULTILINE)
STATUS = Path(__file__).resolve().parents[1] / "native" / "base" / "status.h"


def tree() -> dict[str, tuple[str, str]]:
    """name -> (its parent, its second parent or ""), read from the docstring."""
    found: dict[str, tuple[str, str]] = {}
    above: list[str] = []
    for match in DRAWN.finditer(errors.__doc__ or ""):
        depth = len(match["indent"]) // 4
        above[depth:] = [match["name"]]
        found[match["name"]] = (above[depth - 1] if depth else "Exception", match["also"] or "")
    return found


def test_the_tree_is_as_drawn() -> None:
    drawn = tree()
    assert set(drawn) == {name for name in errors.__all__ if name.endswith("Error")}
    for name, (parent, also) in drawn.items():
        assert [b.__name__ for b in getattr(errors, name).__bases__] == [parent, *([also] if also else [])]


def test_every_class_is_public_and_says_what_it_is() -> None:
    classes = {n for n, v in vars(errors).items() if isinstance(v, type) and v.__module__ == errors.__name__}
    assert classes == set(tree()) and all(vars(errors)[n].__doc__ for n in classes)


def codes() -> list[str]:
    listed = re.search(r"enum class Code : uint8_t \{(.*?)\}", STATUS.read_text())
    assert listed
    return [name.strip() for name in listed[1].split(",")]


@pytest.mark.parametrize(("code", "name"), list(enumerate(codes()))[1:])
def test_every_native_code_has_its_error(code: int, name: str) -> None:
    made = errors.from_status(code, "why", [2, 0])
    assert str(made) == "why"
    if name == "invalid":
        assert type(made) is ValueError
        return
    assert type(made).__name__ == name.title().replace("_", "") + "Error"
    assert isinstance(made, errors.CollectiveError) and made.ranks == (2, 0)


def test_other_codes_are_not_errors() -> None:
    for code in (0, len(codes())):
        with pytest.raises(KeyError):
            errors.from_status(code, "", ())
    assert errors.CollectiveError("x").ranks == ()
