"""Prefixes, progress bars and unfinished lines, byte for byte."""

from __future__ import annotations

import errno
import os
import pty
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.launch.output import LogFile, NobodyReadsError, Prefixer, Screen


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


def test_two_screens_that_lead_to_one_place_share_its_lines() -> None:
    """As with `2>&1`: what is on stderr is not continued by another rank's stdout."""

    def feed(out: Screen) -> None:
        descriptor = os.dup(out._descriptor)
        err = Screen(descriptor, beside=out)
        a, b = Prefixer(err, b"[a] "), Prefixer(out, b"[b] ")
        a.feed(b"half")
        a._held_since -= 1
        a.tick()
        b.feed(b"whole\n")
        a.feed(b" a line\n")
        os.close(descriptor)

    assert shown(feed) == b"[a] half\n[b] whole\n[a]  a line\n"


def test_without_a_prefix_nothing_is_put_between_ranks() -> None:
    def feed(screen: Screen) -> None:
        a, b = Prefixer(screen, b""), Prefixer(screen, b"")
        a.feed(b"half")
        b.feed(b"whole\n")

    assert shown(feed) == b"halfwhole\n"


def test_a_bar_on_a_terminal_is_redrawn_in_place_and_not_overwritten_by_others() -> None:
    ours, theirs = pty.openpty()
    try:
        screen = Screen(theirs)
        a, b = Prefixer(screen, b"[0] "), Prefixer(screen, b"[1] ")
        a.feed(b"10%\r20%\r")
        b.feed(b"hello\n")
        a.feed(b"30%\r")
        got = b""
        while not got.endswith(b"30%\r"):
            got += os.read(ours, 1000)
        assert got == b"[0] 10%\r[0] 20%\r\r\n[1] hello\r\n[0] 30%\r"
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_long_unfinished_line_costs_no_more_than_its_length() -> None:
    screen = Screen(descriptor := os.open(os.devnull, os.O_WRONLY))
    p = Prefixer(screen, b"[0] ")
    start = time.monotonic()
    for _ in range(32):
        p.feed(b"x" * 65536)
    assert time.monotonic() - start < 2  # a second look at each byte would take minutes
    os.close(descriptor)


def test_a_reader_that_is_gone_is_told_once() -> None:
    read, write = os.pipe()
    os.close(read)
    screen = Screen(write)
    p = Prefixer(screen, b"")
    with pytest.raises(NobodyReadsError):
        p.feed(b"a")
    p.feed(b"b")
    os.close(write)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_that_takes_nothing_can_be_given_up(blocking: bool) -> None:
    read, write = os.pipe()
    os.set_blocking(write, blocking)

    def stalled() -> None:
        raise NobodyReadsError

    with pytest.raises(NobodyReadsError):
        Screen(write, stalled=stalled).write(b"x" * 1_000_000)
    os.close(read)
    os.close(write)


def test_a_full_disk_is_an_error() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError) as caught:
        Screen(descriptor).write(b"x")
    assert caught.value.errno == errno.ENOSPC
    os.close(descriptor)


def test_a_log_starts_anew(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a longer old one")
    log = LogFile(tmp_path / "log")
    log.feed(b"\xff\r")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"\xff\r"
