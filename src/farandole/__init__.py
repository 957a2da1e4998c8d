"""farandole: distributed data-parallel training, made distributed by changing a few lines.

Pick the room of your framework (``import farandole.torch as fd`` or ``import farandole.numpy as fd``); this
package itself loads
nothing heavy, so that the launcher starts fast on a bare head node.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "CollectiveError",
    "FarandoleError",
    "MismatchError",
    "PeerLostError",
    "ProcessSet",
    "ShutdownError",
    "StallError",
    "World",
    "__version__",
    "init",
    "is_initialized",
    "shutdown",
]

_WORLD = {"World", "ProcessSet", "init", "is_initialized", "shutdown"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("farandole.world" if name in _WORLD else "farandole.errors"), name)
    raise AttributeError(f"module 'farandole' has no attribute {name!r}")
