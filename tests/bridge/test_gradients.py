"""Bucket plans and the counting of backward passes: pure decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.bridge.gradients import Bucket, Item, Readiness, plan_buckets


def plan(*sizes: int, first: int = 10, full: int = 100, dtypes: str = "") -> tuple[Bucket, ...]:
    items = [Item(f"p{i}", n, dtypes[i] if dtypes else "float32") for i, n in enumerate(sizes)]
    return plan_buckets(items, range(len(items)), first_bytes=first, bucket_bytes=full)


def members(buckets: tuple[Bucket, ...]) -> list[tuple[int, ...]]:
    return [b.members for b in buckets]


def test_first_is_small_then_full_then_small_again() -> None:
    assert members(plan(5, 5, 60, 40, 70, 20, 4, 4)) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_a_large_gradient_travels_alone() -> None:
    assert members(plan(5, 500, 5)) == [(0,), (1,), (2,)]


def test_dtypes_do_not_mix_and_come_in_order_of_completion() -> None:
    assert members(plan(5, 5, 5, 5, dtypes="abab", first=100)) == [(0, 2), (1, 3)]


def test_every_bucket_says_why_it_ends() -> None:
    assert all(b.reason for b in plan(5, 5, 60, 40, 70, 20, 4, 4))


def test_no_parameters_no_buckets() -> None:
    assert plan() == ()


def test_the_order_must_be_complete() -> None:
    with pytest.raises(ValueError, match="order must name each of the 2 items once"):
        plan_buckets([Item("a", 1, "x"), Item("b", 1, "x")], [0, 0], first_bytes=1, bucket_bytes=1)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.sampled_from("ab")), max_size=30),
    st.integers(1, 50),
    st.integers(1, 200),
    st.randoms(use_true_random=False),
)
def test_each_gradient_has_one_bucket_of_its_dtype_within_the_limit(sizes, first, full, random) -> None:  # type: ignore[no-untyped-def]
    items = [Item(f"p{i}", n, d) for i, (n, d) in enumerate(sizes)]
    order = list(range(len(items)))
    random.shuffle(order)
    buckets = plan_buckets(items, order, first_bytes=first, bucket_bytes=full)
    assert sorted(i for b in buckets for i in b.members) == sorted(order)
    place = {i: n for n, i in enumerate(order)}
    for b in buckets:
        assert {items[i].dtype for i in b.members} == {b.dtype}
        assert b.nbytes == sum(items[i].nbytes for i in b.members)
        assert b.nbytes <= max(first, full) or len(b.members) == 1 or sum(items[i].nbytes > 0 for i in b.members) == 1
        assert [place[i] for i in b.members] == sorted(place[i] for i in b.members)
    assert buckets == plan_buckets(items, order, first_bytes=first, bucket_bytes=full)


def readiness(passes: int = 1) -> Readiness:
    return Readiness([Bucket((0, 1), "x", 0, ""), Bucket((2,), "x", 0, "")], passes)


def test_a_bucket_is_complete_with_its_last_member() -> None:
    r = readiness()
    assert [r.arrive(0), r.arrive(2), r.arrive(1)] == [None, 1, 0]
    assert r.order == [0, 2, 1]
    assert r.send_rest() == []


def test_only_the_last_pass_completes() -> None:
    r = readiness(passes=2)
    assert [r.arrive(i) for i in (2, 0, 1)] == [None, None, None]
    assert r.began and not r.final_pass_began
    assert [r.arrive(i) for i in (2, 0, 1)] == [1, None, 0]
    assert r.final_pass_began


def test_the_rest_is_sent_once() -> None:
    r = readiness()
    r.arrive(0)
    assert r.send_rest() == [0, 1]
    assert r.send_rest() == []
    r.begin()
    assert not r.began and r.send_rest() == [0, 1]


def test_one_pass_too_many_is_an_error() -> None:
    r = readiness()
    r.arrive(0)
    with pytest.raises(RuntimeError, match="backward_passes_per_step=1"):
        r.arrive(0)


def test_passes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="must be positive, not 0"):
        readiness(passes=0)
