"""Torch tensors of every kind at the door of the engine, and what autograd learns about writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import farandole.torch as fd
from farandole.torch.tensors import ADAPTER, DTYPES
from farandole.world import World

Ranks = Callable[..., list[Any]]
WHOLE = [d for d in DTYPES if not d.is_floating_point and not d.is_complex and d is not torch.bool]
BROKEN = [d for d in DTYPES if (d.is_floating_point and d.itemsize > 1) or d.is_complex]


@pytest.mark.parametrize("dtype", [*WHOLE, *BROKEN], ids=str)
def test_sums(ranks: Ranks, dtype: torch.dtype) -> None:
    def body(world: World) -> None:
        x = torch.tensor([1, 2, 3]).to(dtype)
        got = fd.ops(world).allreduce(x, op=fd.Sum)
        assert got.dtype is dtype and got.tolist() == [2, 4, 6]

    ranks(2, body)


def test_bool_and_bytes(ranks: Ranks) -> None:
    def body(world: World) -> None:
        ops = fd.ops(world)
        x = torch.tensor([True, world.rank == 0, False])
        assert ops.allreduce(x, op=fd.Sum).tolist() == [True, True, False]
        assert ops.allreduce(x, op=fd.Min).tolist() == [True, False, False]
        assert ops.allgather(x).dtype is torch.bool
        small = torch.full((2,), world.rank + 1.0).to(torch.float8_e5m2)
        assert ops.allgather(small).float().tolist() == [1, 1, 2, 2]
        with pytest.raises(ValueError, match="float8_e5m2 has no average"):
            ops.allreduce(small)

    ranks(2, body)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bytes_and_back(dtype: torch.dtype) -> None:
    x = torch.arange(6).to(dtype).view(2, 3)
    raw = ADAPTER.to_bytes(x)
    assert raw.nbytes == 6 * dtype.itemsize
    again = ADAPTER.from_bytes(raw, DTYPES[dtype], (2, 3))
    assert again.dtype is dtype and again.data_ptr() == x.data_ptr()
    assert torch.equal(again.view(torch.uint8), x.view(torch.uint8))
    nothing = torch.empty(0, 3, dtype=dtype)
    assert ADAPTER.from_bytes(ADAPTER.to_bytes(nothing), DTYPES[dtype], (0, 3)).shape == (0, 3)


def test_views(ranks: Ranks) -> None:
    def body(world: World) -> None:
        ops = fd.ops(world)
        x = torch.arange(24.0).reshape(4, 6) * (world.rank + 1)
        whole = torch.arange(24.0).reshape(4, 6) * 3
        assert torch.equal(ops.allreduce(x.t(), op=fd.Sum), whole.t())
        assert torch.equal(ops.allgather(x[:, 1])[:4], torch.arange(24.0).reshape(4, 6)[:, 1])
        assert torch.equal(ops.broadcast(x[::2, ::3], 1), (whole * 2 / 3)[::2, ::3])
        z = torch.complex(x, x).conj()
        assert torch.equal(ops.allreduce(z, op=fd.Sum), torch.complex(whole, -whole))
        view = x[:, ::2]
        assert ops.allreduce_(view, op=fd.Sum) is view
        assert torch.equal(view, whole[:, ::2])
        assert torch.equal(x[:, 1::2], torch.arange(24.0).reshape(4, 6)[:, 1::2] * (world.rank + 1))
        with pytest.raises(ValueError, match="it is expanded"):
            ops.allreduce_(torch.ones(1).expand(3))
        with pytest.raises(ValueError, match="use to_dense"):
            ops.allreduce(torch.eye(2).to_sparse())

    ranks(2, body)


def test_scalars_keep_their_shape(ranks: Ranks) -> None:
    def body(world: World) -> None:
        got = fd.ops(world).allreduce(torch.tensor(float(world.rank)))
        assert got.shape == () and got.item() == 0.5

    ranks(2, body)


def test_autograd_notices_writes(ranks: Ranks) -> None:
    def body(world: World) -> None:
        x = torch.ones(2)
        w = torch.ones(2, requires_grad=True)
        y = (w * x).sum()
        fd.ops(world).allreduce_(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()

    ranks(2, body)


def test_parameters_can_be_overwritten(ranks: Ranks) -> None:
    def body(world: World) -> None:
        p = torch.nn.Parameter(torch.full((2, 3), float(world.rank)))
        fd.ops(world).broadcast_(p, 1)
        assert torch.equal(p, torch.ones(2, 3)) and p.requires_grad and p.is_leaf
        q = torch.nn.Parameter(torch.full((2, 3), float(world.rank)).t())
        fd.ops(world).broadcast_(q, 1)
        assert torch.equal(q, torch.ones(3, 2)) and q.requires_grad and q.is_leaf

    ranks(2, body)


def test_received_splits(ranks: Ranks) -> None:
    def body(world: World) -> None:
        x = torch.arange(3) + 10 * world.rank
        splits = torch.tensor([1, 2] if world.rank == 0 else [3, 0])
        got, counts = fd.ops(world).alltoall(x, splits)
        assert counts.dtype is torch.int32
        assert (got.tolist(), counts.tolist()) == [([0, 10, 11, 12], [1, 3]), ([1, 2], [2, 0])][world.rank]
        alone = fd.ops(world).alltoall(torch.arange(2) + 10 * world.rank)
        assert isinstance(alone, torch.Tensor) and alone.tolist() == [world.rank, 10 + world.rank]

    ranks(2, body)


def test_casts_leave_narrow_and_whole_numbers_alone() -> None:
    for compressor in (fd.Compression.fp16, fd.Compression.bf16, fd.Compression.none):
        for dtype in (torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64):
            x = torch.ones(3).to(dtype)
            small, context = compressor.compress(x)
            assert small.dtype.itemsize <= dtype.itemsize
            assert torch.equal(compressor.decompress(small, context), x)


def test_module_functions_use_the_default_world() -> None:
    with pytest.raises(fd.NotInitializedError, match="init"):
        fd.rank()
    assert not fd.is_initialized()
    fd.init()
    try:
        assert (fd.rank(), fd.size(), fd.local_rank(), fd.local_size()) == (0, 1, 0, 1)
        assert (fd.cross_rank(), fd.cross_size(), fd.is_homogeneous()) == (0, 1, True)
        x = torch.arange(3.0)
        assert torch.equal(fd.allreduce(x, process_set=fd.global_process_set), x)
        assert torch.equal(fd.allgather(x), x)
        assert fd.broadcast_object({"a": 1}) == {"a": 1} and fd.allgather_object(1) == [1]
        assert fd.add_process_set([0]).ranks == (0,)
        handle = fd.allreduce_async(x)
        assert torch.equal(fd.synchronize(handle), x) and fd.poll(handle)
        fd.barrier()
    finally:
        fd.shutdown()
    with pytest.raises(fd.NotInitializedError):
        fd.allreduce(torch.ones(1))
