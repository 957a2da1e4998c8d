"""The questions `bridge` asks about a tensor library. One implementation for each framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeGuard, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")


class Adapter(Protocol[T]):
    """How tensors of type `T` look from outside.

    A *host tensor* is contiguous in C order and in memory that the CPU reaches; the engine works on those
    only. Every method may be called from any thread.
    """

    def owns(self, value: object) -> TypeGuard[T]:
        """Whether `value` is a tensor of this library."""
        ...

    def dtype(self, tensor: T) -> str:
        """The element type in the engine's words ("float32", "bfloat16" ...). ValueError when it has none."""
        ...

    def shape(self, tensor: T) -> tuple[int, ...]:
        """The dimensions; () for a scalar."""
        ...

    def host(self, tensor: T) -> T:
        """`tensor` itself when it is a host tensor, else a host copy of it. Never part of a gradient tape."""
        ...

    def address(self, host: T) -> int:
        """Where the elements of a host tensor begin."""
        ...

    def empty(self, like: T, shape: tuple[int, ...]) -> T:
        """A new host tensor with the dtype of `like`; its contents are arbitrary."""
        ...

    def from_bytes(self, raw: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> T:
        """A host tensor over the memory of `raw`, without a copy; it keeps `raw` alive."""
        ...

    def to_bytes(self, host: T) -> NDArray[np.uint8]:
        """The memory of a host tensor as bytes, without a copy."""
        ...

    def deliver(self, host: T, like: T) -> T:
        """A host result where the caller expects it: on the device of `like`."""
        ...

    def why_not_writable(self, tensor: T) -> str:
        """Why a collective must not write into `tensor`, in words; "" when it may."""
        ...

    def written(self, tensor: T, host: T) -> None:
        """`host`, from `host(tensor)`, was overwritten: bring the values to `tensor` if they are apart."""
        ...


class Compressor(Protocol[T]):
    """A smaller form of a tensor for the way over the wire. Classes with static methods fit as well."""

    def compress(self, tensor: T) -> tuple[T, object]:
        """The tensor to send, and what `decompress` needs to know."""
        ...

    def decompress(self, tensor: T, context: object) -> T:
        """The received tensor in its original form."""
        ...
