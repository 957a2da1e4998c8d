"""One rank of a world of real processes: runs contract cases named on standard input, one JSON line each."""

from __future__ import annotations

import json
import os
import sys
import traceback

import farandole
from tests.contract.cases import CASES, Rank
from tests.contract.libraries import LIBRARIES


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing printed by a case mixes with the answers
    world = farandole.init()
    print(json.dumps({"transports": sorted(set(world.transports().values()))}), file=answers, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        library = LIBRARIES[order["library"]]
        try:
            CASES[order["case"]](Rank(library.ops(world), library, world.rank, world.size), order["dtype"], order["n"])
            error = ""
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"error": error}), file=answers, flush=True)
    farandole.shutdown()


if __name__ == "__main__":
    main()
