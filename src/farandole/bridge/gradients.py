"""When gradients are reduced: which ones travel together, and when a bucket of them is complete.

Decisions only. No tensor, no world, no clock in here; the framework's optimizer does what this decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """One gradient: its parameter's name, its size, its dtype in the engine's words."""

    name: str
    nbytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced as one request.

    members: indices into the items planned, in the order in which they lie in the bucket.
    reason: why the bucket ends where it does.
    """

    members: tuple[int, ...]
    dtype: str
    nbytes: int
    reason: str


def plan_buckets(
    items: Sequence[Item], order: Sequence[int], *, first_bytes: int, bucket_bytes: int
) -> tuple[Bucket, ...]:
    """Divide `items`, which become ready in about the order `order` (all their indices), into buckets.

    The first bucket of a dtype holds up to `first_bytes`, so that the wire starts early; the later ones up to
    `bucket_bytes`; and what is ready last is held in a small bucket again, because nothing is left to compute
    while it travels. A gradient larger than a bucket travels alone. A pure function: equal arguments on all
    ranks give equal buckets.
    """
    if sorted(order) != list(range(len(items))):
        raise ValueError(f"order must name each of the {len(items)} items once")
    if first_bytes <= 0 or bucket_bytes <= 0:
        raise ValueError(f"bucket sizes must be positive, not {first_bytes} and {bucket_bytes} bytes")
    buckets: list[Bucket] = []
    for dtype in dict.fromkeys(items[i].dtype for i in order):
        ready = [i for i in order if items[i].dtype == dtype]
        sizes = {i: items[i].nbytes for i in ready}
        mine: list[Bucket] = []
        members: list[int] = []
        limit, nbytes = min(first_bytes, bucket_bytes), 0
        for i in ready:
            if members and nbytes + sizes[i] > limit:
                mine.append(_bucket(members, sizes, dtype, "first: starts the wire early" if not mine else "full"))
                members, limit, nbytes = [], bucket_bytes, 0
            members.append(i)
            nbytes += sizes[i]
        mine.extend(_tail(members, sizes, dtype, first_bytes))
        buckets.extend(mine)
    place = {i: position for position, i in enumerate(order)}
    return tuple(sorted(buckets, key=lambda bucket: place[bucket.members[-1]]))


def _tail(members: list[int], sizes: dict[int, int], dtype: str, small: int) -> list[Bucket]:
    """The last bucket of a dtype, divided so that what is ready last is small."""
    cut = len(members)
    nbytes = 0
    while cut > 0 and nbytes + sizes[members[cut - 1]] <= small:
        cut -= 1
        nbytes += sizes[members[cut]]
    if cut == 0 or cut == len(members):
        return [_bucket(members, sizes, dtype, "last")]
    return [
        _bucket(members[:cut], sizes, dtype, "ends before the last, small one"),
        _bucket(members[cut:], sizes, dtype, "last: small, since nothing is left to compute while it travels"),
    ]


def _bucket(members: list[int], sizes: dict[int, int], dtype: str, reason: str) -> Bucket:
    return Bucket(tuple(members), dtype, sum(sizes[i] for i in members), reason)


class Readiness:
    """Counts the backward passes of one step and says when a bucket is complete. Not locked: the owner locks.

    A gradient is ready after `passes` arrivals; a bucket is complete when all its members are ready, and is
    then *sent* once in this step.
    """

    def __init__(self, buckets: Sequence[Bucket], passes: int) -> None:
        if passes <= 0:
            raise ValueError(f"backward_passes_per_step must be positive, not {passes}")
        self.passes = passes
        self._buckets = [bucket.members for bucket in buckets]
        self._home = {item: b for b, members in enumerate(self._buckets) for item in members}
        self.begin()

    def begin(self) -> None:
        """Forget this step and begin the next one."""
        self._arrivals = dict.fromkeys(self._home, 0)
        self._waiting_for = [len(members) for members in self._buckets]
        self._sent = [False] * len(self._buckets)
        self.order: list[int] = []  # items in the order in which they became ready

    @property
    def began(self) -> bool:
        """Whether any gradient has arrived in this step."""
        return any(self._arrivals.values())

    @property
    def final_pass_began(self) -> bool:
        """Whether a gradient is ready, so that on some rank a bucket may have been sent.

        All ranks that run the same number of backward passes agree on it, also when their gradients differ.
        """
        return bool(self.order)

    def arrived(self, item: int) -> bool:
        """Whether `item` has had any arrival in this step."""
        return self._arrivals[item] > 0

    def full(self, item: int) -> bool:
        """Whether one more arrival of `item` would be one too many."""
        return self._arrivals[item] >= self.passes

    def arrive(self, item: int) -> int | None:
        """One backward pass has produced `item`. Returns the bucket to send now, if this completes one.

        RuntimeError when it is one pass too many.
        """
        if self.full(item):
            raise RuntimeError(
                f"a gradient was produced more than backward_passes_per_step={self.passes} times "
                "before step(): call step() or zero_grad() between, or raise backward_passes_per_step"
            )
        self._arrivals[item] += 1
        if self._arrivals[item] < self.passes:
            return None
        self.order.append(item)
        bucket = self._home[item]
        self._waiting_for[bucket] -= 1
        if self._waiting_for[bucket] or self._sent[bucket]:
            return None
        self._sent[bucket] = True
        return bucket

    def send_rest(self) -> list[int]:
        """The buckets not sent in this step, in order; from now on they are."""
        rest = [b for b, sent in enumerate(self._sent) if not sent]
        self._sent = [True] * len(self._sent)
        return rest
