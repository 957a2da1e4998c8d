"""What a tensor library adds to the contract: make a tensor, read it back."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from farandole.bridge.ops import Ops
from farandole.world import World


class Library(Protocol):
    dtypes: tuple[str, ...]

    def ops(self, world: World) -> Ops[Any]: ...
    def make(self, values: np.ndarray, dtype: str) -> Any: ...
    def read(self, tensor: Any) -> np.ndarray: ...
    def over(self, raw: np.ndarray, dtype: str, n: int) -> Any: ...
    def write(self, tensor: Any, values: np.ndarray) -> None: ...


class Numpy:
    dtypes = (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "complex64", "complex128",
    )  # fmt: skip

    def ops(self, world: World) -> Ops[Any]:
        import farandole.numpy

        return farandole.numpy.ops(world)

    def make(self, values: np.ndarray, dtype: str) -> Any:
        return values.astype(dtype)

    def read(self, tensor: Any) -> np.ndarray:
        return np.array(tensor)

    def over(self, raw: np.ndarray, dtype: str, n: int) -> Any:
        return raw[: n * np.dtype(dtype).itemsize].view(dtype)

    def write(self, tensor: Any, values: np.ndarray) -> None:
        tensor[...] = values


class Torch:
    dtypes = (*Numpy.dtypes, "bfloat16")

    def ops(self, world: World) -> Ops[Any]:
        import farandole.torch

        return farandole.torch.ops(world)

    def make(self, values: np.ndarray, dtype: str) -> Any:
        import torch

        return torch.from_numpy(np.array(values)).to(getattr(torch, dtype))

    def read(self, tensor: Any) -> np.ndarray:
        import torch

        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy().copy()

    def over(self, raw: np.ndarray, dtype: str, n: int) -> Any:
        import torch

        kind = getattr(torch, dtype)
        return torch.from_numpy(raw)[: n * kind.itemsize].view(kind)

    def write(self, tensor: Any, values: np.ndarray) -> None:
        import torch

        tensor.copy_(torch.from_numpy(values))


LIBRARIES: dict[str, Library] = {"numpy": Numpy(), "torch": Torch()}
