"""Prefixes, progress bars and unfinished lines, byte for byte."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.launch.output import Prefixer, Screen


def shown(feed: Callable[[Screen], None]) -> bytes:
    """What a screen that is a pipe gets."""
    read, write = os.pipe()
    try:
        feed(Screen(write))
        os.close(write)
        with os.fdopen(read, "rb") as f:
            return f.read()
    except BaseException:
        os.close(read)
        raise


def one(pieces: list[bytes], prefix: bytes = b"[3] ") -> bytes:
    def feed(screen: Screen) -> None:
        p = Prefixer(screen, prefix)
        for piece in pieces:
            p.feed(piece)
        p.close()

    return shown(feed)


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        ([b"a\nb\n"], b"[3] a\n[3] b\n"),
        ([b"a", b"b\nc"], b"[3] ab\n[3] c"),
        ([b"10%\r20%\r", b"30%\rdone\n"], b"[3] 10%\r[3] 20%\r[3] 30%\r[3] done\n"),
        ([b"\r10%", b"\r20%\n"], b"\r[3] 10%\r[3] 20%\n"),
        ([b"dos\r\n", b"split\r", b"\nend\n"], b"[3] dos\r\n[3] split\r\n[3] end\n"),
        ([b"\n\n"], b"[3] \n[3] \n"),
        ([b"\xff\xfe\n"], b"[3] \xff\xfe\n"),
        ([b"x" * 100_00 + b"\n"], b"[3] " + b"x" * 100_00 + b"\n"),
    ],
)
def test_one_rank(pieces: list[bytes], want: bytes) -> None:
    assert one(pieces) == want


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"[", b"\n")), max_size=12))
def test_without_the_prefixes_it_is_what_the_rank_wrote(pieces: list[bytes]) -> None:
    assert one(pieces).replace(b"[3] ", b"") == b"".join(pieces)
    assert one(pieces, prefix=b"") == b"".join(pieces)


def test_an_unfinished_line_is_shown_after_a_moment_and_keeps_its_place() -> None:
    def feed(screen: Screen) -> None:
        a, b = Prefixer(screen, b"[a] "), Prefixer(screen, b"[b] ")
        a.feed(b"name? ")
        assert a.waiting
        a._held_since -= 1  # as if the moment had passed
        a.tick()
        assert not a.waiting
        b.feed(b"hello\n")
        a.feed(b"Ada\n")

    assert shown(feed) == b"[a] name? \n[b] hello\n[a] Ada\n"


def test_the_last_lines_are_remembered() -> None:
    def feed(screen: Screen) -> None:
        p = Prefixer(screen, b"")
        p.feed(b"\n".join(b"line %d" % i for i in range(50)) + b"\n10%\r20%\rlast")
        assert p.last_lines()[-2:] == ["line 49", "last"] and len(p.last_lines()) == 21

    shown(feed)
