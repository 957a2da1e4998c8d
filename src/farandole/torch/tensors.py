"""The adapter for torch tensors: any device, any layout; the engine sees host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeGuard

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from farandole.world import World

DTYPES: Final[dict[torch.dtype, str]] = {
    torch.bool: "bool",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.float8_e4m3fn: "float8_e4m3",
    torch.float8_e5m2: "float8_e5m2",
}
_BY_NAME: Final = {name: dtype for dtype, name in DTYPES.items()}


class TorchAdapter:
    """Contiguous host tensors are used where they are; others (CUDA, strided) go through a host copy."""

    def owns(self, value: object) -> TypeGuard[torch.Tensor]:
        return isinstance(value, torch.Tensor)

    def dtype(self, tensor: torch.Tensor) -> str:
        name = DTYPES.get(tensor.dtype)
        if name is None:
            raise ValueError(f"tensors of {tensor.dtype} are not supported; convert the tensor first")
        if tensor.layout is not torch.strided:
            raise ValueError(f"tensors of layout {tensor.layout} are not supported; use to_dense()")
        return name

    def shape(self, tensor: torch.Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        return tensor.detach().to("cpu").resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)

    def address(self, host: torch.Tensor) -> int:
        return host.data_ptr()

    def empty(self, like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=like.dtype)

    def from_bytes(self, raw: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.from_numpy(raw.reshape(-1)).view(_BY_NAME[dtype]).view(shape)

    def to_bytes(self, host: torch.Tensor) -> NDArray[np.uint8]:
        return host.detach().view(-1).view(torch.uint8).numpy()

    def deliver(self, host: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return host if like.is_cpu else host.to(like.device)

    def why_not_writable(self, tensor: torch.Tensor) -> str:
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            return "it is expanded, several of its elements share one place in memory; use clone()"
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            return "it was made in inference mode; use clone()"
        return ""

    def written(self, tensor: torch.Tensor, host: torch.Tensor) -> None:
        if host is tensor:
            # Written behind torch's back: let autograd notice values it has saved for backward.
            torch.autograd.graph.increment_version(tensor)
        else:
            with torch.no_grad():
                tensor.copy_(host)


ADAPTER: Final = TorchAdapter()


def registered(world: World, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A vector of zeros in registered memory, which the engine reduces without copies."""
    raw = world.empty(max(elements, 1) * dtype.itemsize)
    return torch.from_numpy(raw).view(dtype)[:elements]
