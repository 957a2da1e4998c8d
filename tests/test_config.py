"""Options: defaults, values, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from farandole import config, errors
from farandole.config import LAUNCH_VARIABLES, OPTIONS, Config, load
from farandole.errors import ConfigError


def test_every_field_has_one_option() -> None:
    assert sorted(f.name for f in fields(Config)) == sorted(o.name for o in OPTIONS)
    assert len({o.env for o in OPTIONS}) == len(OPTIONS)
    assert all(o.help for o in OPTIONS)


def test_defaults_and_values() -> None:
    assert load({}) == Config()
    assert load({"FARANDOLE_FUSION_BYTES": "0", "FARANDOLE_TRANSPORT": "TCP"}) == Config(
        fusion_bytes=0, transport="tcp"
    )
    assert load({"FARANDOLE_STALL_LIMIT_SECONDS": "1.5"}).stall_limit_s == 1.5
    assert load({name: "x" for name in LAUNCH_VARIABLES} | {"PATH": "/bin"}) == Config()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("FARANDOLE_TRANSPRT", "tcp", "did you mean FARANDOLE_TRANSPORT?"),
        ("FARANDOLE_TRANSPORT", "smoke", "expected one of auto, shm, tcp"),
        ("FARANDOLE_FUSION_BYTES", "64M", "expected a whole number of bytes"),
        ("FARANDOLE_FUSION_BYTES", "-1", "at least 0"),
        ("FARANDOLE_STALL_LIMIT_SECONDS", "nan", "expected a number of s"),
        ("FARANDOLE_STALL_LIMIT_SECONDS", "inf", "expected a number of s"),
        ("FARANDOLE_BUCKET_BYTES", "0", "at least 1"),
    ],
)
def test_refusals_name_the_option_and_what_was_expected(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=name.replace("?", r"\?")) as caught:
        load({name: value})
    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_the_command_lists_all() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "farandole", "config"], capture_output=True, text=True, timeout=30, check=True
    ).stdout
    assert all(f"{o.env}=" in out and o.help in out for o in config.OPTIONS)


def test_the_tree_of_errors_is_as_drawn() -> None:
    drawn = [line.strip(" │├└─").split(" ")[0] for line in (errors.__doc__ or "").splitlines() if "Error" in line]
    classes = {n for n in errors.__all__ if n.endswith("Error")}
    assert classes <= set(drawn)
    for code, kind in {1: "Mismatch", 3: "PeerLost", 4: "Stall", 5: "Shutdown", 6: "Internal"}.items():
        made = errors.from_status(code, "why", (2,))
        assert type(made).__name__ == f"{kind}Error" and str(made) == "why"
        assert isinstance(made, errors.CollectiveError) and made.ranks == (2,)
    assert type(errors.from_status(2, "why", ())) is ValueError


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_every_option_has_a_default_that_parses_and_bounds_that_hold(option: config.Option) -> None:
    assert (
        getattr(load({option.env: str(option.default)}), option.name)
        == option.default
        == getattr(Config(), option.name)
    )
    if option.choices:
        for word in option.choices:
            assert getattr(load({option.env: word.upper()}), option.name) == word
        bad = ["", "other"]
    elif option.type is str:
        bad = []
    else:
        least = option.type(option.least)
        assert getattr(load({option.env: str(least)}), option.name) == least
        bad = ["", "x", str(least - 1), "nan", "inf", "1" * 5000, str(1 << 64)]
    for value in bad:
        with pytest.raises(ConfigError, match=option.env):
            load({option.env: value})


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_a_misspelt_name_finds_its_option(option: config.Option) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {option.env}\\?"):
        load({option.env + "X": "1"})


def test_a_name_near_nothing_gets_no_hint() -> None:
    with pytest.raises(ConfigError) as caught:
        load({"FARANDOLE_" + "0" * 60: "1"})
    assert "did you mean" not in str(caught.value)
