#!/usr/bin/env python3
"""Measure farandole beside its peers, interleaved, with a bench that drives them all.

    compare.py DIRECTORY collectives [-n 2] [--cases short]
    compare.py DIRECTORY train [-n 2] [--models resnet18,mlp]

DIRECTORY holds the bench (peers.py, train.py and their workers). farandole must be installed in its `torch`
environment.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAUNCH = "{venv}/bin/farandole run -np {n} --no-prefix"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("what", choices=["collectives", "train"])
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="results.jsonl")
    parser.add_argument("--tag", default=str(int(time.time())))
    parser.add_argument("--peers", default="farandole,farandole-registered,gloo,openmpi,openmpi-malloc")
    parser.add_argument("--cases", default="short", help="short, large, other or all")
    parser.add_argument("--seconds", type=float, default=0.25, help="of calls per round")
    parser.add_argument("--ref", default="gloo", help="the peer that ratios are taken to")
    parser.add_argument("--stat", default="med", choices=["med", "mean", "min", "p90"])
    parser.add_argument("--runs", default="single,xN alone,farandole,ddp,ddp-view")
    parser.add_argument("--models", default="resnet18,transformer,mlp")
    parser.add_argument("--iters", type=int, default=8)
    a = parser.parse_args()
    sys.path.insert(0, str(a.directory.resolve()))
    os.environ["BENCH_DIRECTORY"] = str(a.directory.resolve())
    os.environ["PYTHONPATH"] = f"{HERE}:{os.environ.get('PYTHONPATH', '')}"  # `adapters` spans both directories
    import peers
    import train

    for name, env in {"farandole": {}, "farandole-registered": {"BENCH_REGISTERED": "1"}}.items():
        peers.PEERS[name] = peers.Peer("farandole", "torch", LAUNCH, env)
    if a.what == "collectives":
        peers.run(a)
        return
    train.RUNS["farandole"] = (0, "torch", LAUNCH, "farandole", {})
    group = peers.Group

    def with_farandole(*args: object, script: str, **more: object) -> object:
        return group(*args, script=str(HERE / script), **more)

    peers.Group = with_farandole
    train.run(a)


if __name__ == "__main__":
    main()
