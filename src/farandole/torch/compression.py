"""Smaller forms of tensors for the way over the wire."""

from __future__ import annotations

from typing import ClassVar

import torch


class Compressor:
    """Base of compressors: override both static methods. Instances are never made."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        """The tensor to send, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, context: object) -> torch.Tensor:
        """The received tensor in its original form."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: object) -> torch.Tensor:
        return tensor


class CastCompressor(Compressor):
    """Sends floating-point tensors wider than `wire_dtype` in that dtype; leaves others alone."""

    wire_dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, object]:
        if not tensor.is_floating_point() or tensor.dtype.itemsize <= cls.wire_dtype.itemsize:
            return tensor, None
        return tensor.to(cls.wire_dtype), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: object) -> torch.Tensor:
        return tensor.to(context) if isinstance(context, torch.dtype) else tensor


class FP16Compressor(CastCompressor):
    """Sends floating-point tensors as float16. Values beyond 65504 become infinite."""

    wire_dtype = torch.float16


class BF16Compressor(CastCompressor):
    """Sends floating-point tensors as bfloat16: the range of float32 with 8 bits of precision."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressors to choose from."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
