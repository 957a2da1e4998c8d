"""Train a CNN on real images, on as many processes as the launcher starts.

    farandole run -np 2 python examples/torch_mnist.py

The lines marked (1), (2) and (3) are what makes it distributed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
from images import load
from torch import nn

import farandole.torch as fd


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


def batches(count: int, batch: int, epoch: int, seed: int, rank: int, size: int) -> list[torch.Tensor]:
    """This rank's part of each global batch of size * batch images; all ranks shuffle alike."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + epoch))
    whole = batch * size
    return [order[at + rank * batch : at + (rank + 1) * batch] for at in range(0, count - whole + 1, whole)]


class Progress:
    """One line on rank 0 that redraws itself: loss, images/s of all ranks, share of time spent waiting."""

    def __init__(self, title: str, steps: int, images_per_step: int, show: bool) -> None:
        self.title, self.steps, self.images, self.show = title, steps, images_per_step, show
        self.start = self.drawn = time.perf_counter()

    def update(self, step: int, loss: float, waited: float) -> None:
        now = time.perf_counter()
        if not self.show or (now - self.drawn < 0.2 and step < self.steps):
            return
        self.drawn = now
        bar = "#" * (24 * step // self.steps)
        rate = step * self.images / (now - self.start)
        print(
            f"\r{self.title} [{bar:.<24}] loss {loss:.3f}  {rate:7,.0f} images/s  "
            f"waiting {waited / (now - self.start):4.0%}",
            end="\n" if step == self.steps else "",
            file=sys.stderr,
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02, help="for the batch of one rank; multiplied by their number")
    parser.add_argument("--data", default="any", help="any, fashion, mnist or digits")
    parser.add_argument("--limit", type=int, default=0, help="train on the first images only")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-compare", action="store_true", help="skip the one-process run at the start")
    parser.add_argument("--json", help="rank 0 writes the results to this file")
    a = parser.parse_args()

    fd.init()  # (1) find the other processes
    rank, size = fd.rank(), fd.size()
    data = load(a.data)
    train_x, train_y = (data.train_x[: a.limit], data.train_y[: a.limit]) if a.limit else (data.train_x, data.train_y)
    if rank == 0:
        print(
            f"{data.name}; {size} process{'es' if size > 1 else ''}, {a.batch_size} images each per step",
            flush=True,
        )

    torch.manual_seed(a.seed)
    model = make_model()
    alone = 0.0
    if size > 1 and not a.no_compare:
        alone = one_process_rate(train_x, train_y, a)

    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=a.lr * size, momentum=0.9)
    optimizer = fd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())  # (2) average gradients
    fd.broadcast_parameters(model.state_dict(), root_rank=0)  # (3) start from the same weights

    images, seconds, loss = 0, 0.0, torch.zeros(())
    for epoch in range(a.epochs):
        steps = batches(len(train_x), a.batch_size, epoch, a.seed, rank, size)
        progress = Progress(f"epoch {epoch + 1}/{a.epochs}", len(steps), a.batch_size * size, rank == 0)
        waited = optimizer.communication_wait_seconds
        for step, chosen in enumerate(steps, 1):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train_x[chosen]), train_y[chosen])
            loss.backward()
            optimizer.step()
            progress.update(step, float(loss), optimizer.communication_wait_seconds - waited)
        images += len(steps) * a.batch_size * size
        seconds += time.perf_counter() - progress.start

    # Every rank looks at its part of the held-out images; sums, not averages, so that parts may differ in size.
    with torch.no_grad():
        right = (model(data.test_x[rank::size]).argmax(1) == data.test_y[rank::size]).sum()
        train = F.cross_entropy(model(train_x[rank:2000:size]), train_y[rank:2000:size], reduction="sum")
    right, train = fd.allreduce(right, op=fd.Sum), fd.allreduce(train, op=fd.Sum)
    result = {
        "data": data.name,
        "size": size,
        "accuracy": float(right) / len(data.test_y),
        "loss": float(train) / len(train_y[:2000]),
        "images_per_second": images / seconds,
        "one_process_images_per_second": alone,
    }
    if rank == 0:
        print(f"held-out accuracy {result['accuracy']:.2%}, training loss {result['loss']:.4f}")
        print(f"{result['images_per_second']:,.0f} images/s on {size} process{'es' if size > 1 else ''}", end="")
        print(f", {alone:,.0f} on one: {result['images_per_second'] / alone:.2f} times as fast" if alone else "")
        if a.json:
            with open(a.json, "w") as f:
                json.dump(result, f)
    fd.shutdown()


def one_process_rate(x: torch.Tensor, y: torch.Tensor, a: argparse.Namespace) -> float:
    """Images/s of rank 0 alone, with the same model and batch, while the others wait."""
    rate = torch.zeros(1)
    if fd.rank() == 0:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=a.lr, momentum=0.9)
        steps = batches(len(x), a.batch_size, 0, a.seed, 0, 1)[:110]
        warm = min(10, len(steps) - 1)  # the first steps allocate memory and choose kernels
        progress = Progress("one process", len(steps) - warm, a.batch_size, True)
        for step, chosen in enumerate(steps, 1 - warm):
            if step == 1:
                progress.start = time.perf_counter()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[chosen]), y[chosen])
            loss.backward()
            optimizer.step()
            if step > 0:
                progress.update(step, float(loss), 0.0)
        rate[0] = (len(steps) - warm) * a.batch_size / (time.perf_counter() - progress.start)
    return float(fd.broadcast(rate, root_rank=0))


if __name__ == "__main__":
    main()
