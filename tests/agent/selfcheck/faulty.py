"""Devices with faults that implement the protocol of a backend, and a worker that uses them as its GPUs.

`FAULTS` has the fault of each GPU by its number: FAULTS="1=element 2=hang". "list=hang": they cannot be listed;
"loading=hang": no worker begins. `GPUS` is how many there are.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import msgspec
import numpy as np

from understudy_selfcheck.check import Extent, check
from understudy_selfcheck.numpy_backend import NumpyBackend, NumpyProblem
from understudy_selfcheck.worker import GpuList, WorkerResult

SIZE, DEPTH = 128, 256


class Faulty(NumpyBackend):
    """`fault` is "" for none, "element" (one is off by one in every third product), "nan", "bit" (the last one of one
    element), "slow", "word" (one of memory), "driver" (it raises, as torch does), "hang", "die".
    """

    def __init__(self, fault: str = "", number: int = 0) -> None:
        super().__init__(SIZE, DEPTH)
        self._fault = fault
        self._products = 0
        self.uuid = f"GPU-{number}"
        self.device_name = "Testing GPU"

    def multiply(self, problem: NumpyProblem) -> Any:
        product = super().multiply(problem)
        self._products += 1
        if self._fault == "element" and self._products % 3 == 0:
            product[7, 9] += 1
        elif self._fault == "nan":
            product[3, 3] = np.nan
        elif self._fault == "bit":
            product[0, 0] = np.nextafter(product[0, 0], np.inf)
        elif self._fault == "driver":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        elif self._fault == "hang":
            time.sleep(600)
        elif self._fault == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif self._fault == "slow":
            time.sleep(0.2)
        return product

    def wrong_words(self, size_bytes: int, pattern: int) -> int:
        return super().wrong_words(size_bytes, pattern) + (self._fault == "word")


def main() -> int:
    faults = dict(one.split("=") for one in os.environ.get("FAULTS", "").split())
    if "loading" in faults and sys.argv[1] != "list":
        time.sleep(600)
    sys.stdout.write("loaded\n")
    sys.stdout.flush()
    if sys.argv[1] == "list":
        answer: GpuList | WorkerResult = GpuList(int(os.environ.get("GPUS", "0")), os.environ.get("CANNOT_LOOK", ""))
        if "list" in faults:
            time.sleep(600)
    else:
        device, seconds, share = sys.argv[1:]
        number = os.environ["CUDA_VISIBLE_DEVICES"] if device == "cuda" else "0"
        backend = Faulty(faults.get(number, ""), int(number))
        try:
            result = check(backend, Extent(float(seconds), float(share)), time.perf_counter)
            answer = WorkerResult(backend.name, backend.device_name, backend.uuid, result)
        except RuntimeError as error:
            answer = WorkerResult(backend.name, backend.device_name, backend.uuid, failure=str(error))
    sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
