"""One rank of a training run of the side-by-side bench, with farandole among its trainers."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any


class Farandole:
    """DistributedOptimizer as a user has it."""

    def __init__(self, how: str) -> None:
        import farandole.torch as fd

        self.fd = fd
        fd.init()
        self.rank, self.size = fd.rank(), fd.size()

    def wrap(self, model: Any, opt: Any) -> tuple[Any, Any]:
        self.fd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, self.fd.DistributedOptimizer(opt, named_parameters=model.named_parameters())

    def barrier(self) -> None:
        self.fd.barrier()

    def close(self) -> None:
        self.fd.shutdown()


if __name__ == "__main__":
    directory = os.environ["BENCH_DIRECTORY"]
    sys.path.insert(0, directory)
    worker = runpy.run_path(f"{directory}/train_worker.py", run_name="bench")
    worker["TRAINERS"]["farandole"] = Farandole
    worker["main"]()
