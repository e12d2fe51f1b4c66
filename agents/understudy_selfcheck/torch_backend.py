"""A GPU, or the processor, with torch. The GPU is the first one visible to this process."""

from __future__ import annotations

import ctypes
import hashlib
import platform
from dataclasses import dataclass

import torch

from understudy_selfcheck.backend import host_memory_bytes, stretches
from understudy_selfcheck.patterns import TILE, Pattern

KINDS: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
WORDS_AT_ONCE = 2**24


@dataclass(frozen=True, slots=True)
class TorchProblem:
    left: torch.Tensor
    right: torch.Tensor
    tile: torch.Tensor  # of the product, in its format
    tf32: bool
    flops: float


class TorchBackend:
    name = "torch"

    def __init__(self, device: str, size: int, depth: int) -> None:
        """`device` is "cuda" or "cpu". Raises RuntimeError when the GPU, which was listed before, cannot be used."""
        self._size, self._depth = size, depth
        self._device = torch.device(device)
        self._on_gpu = device == "cuda"
        self.uuid = ""
        self.device_name = f"CPU {platform.processor() or platform.machine()}"
        self.kinds: tuple[str, ...] = ("float32", "float64")
        if self._on_gpu:
            if not torch.cuda.is_available():
                raise RuntimeError("the driver lists it, but CUDA cannot use it")
            found = torch.cuda.get_device_properties(0)
            self.device_name, self.uuid = found.name, f"GPU-{getattr(found, 'uuid', 'unknown')}"
            self.kinds = tuple(KINDS)
            # Partial sums in sixteen bits would be rounded on the way, in an order of the library's own.
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
            torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def prepare(self, pattern: Pattern, kind: str) -> TorchProblem:
        left = torch.frombuffer(pattern.left(self._depth), dtype=torch.int8).reshape(TILE, self._depth)
        right = torch.frombuffer(pattern.right(self._depth), dtype=torch.int8).reshape(self._depth, TILE)
        tile = left.to(torch.int64) @ right.to(torch.int64)  # computed by the host, in whole numbers
        times, number = self._size // TILE, KINDS[kind]
        return TorchProblem(
            left.to(self._device).to(number).repeat(times, 1),
            right.to(self._device).to(number).repeat(1, times),
            tile.to(number).to(self._device),
            kind == "tf32",
            2.0 * self._size * self._size * self._depth,
        )

    def multiply(self, problem: TorchProblem) -> torch.Tensor:
        if self._on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = problem.tf32
        product = problem.left @ problem.right
        if self._on_gpu:
            torch.cuda.synchronize()
        return product

    def wrong(self, problem: TorchProblem, product: torch.Tensor) -> int:
        times = self._size // TILE
        # Not "differs": NaN differs from itself, and must count once.
        blocks = product.reshape(times, TILE, times, TILE)
        return int((~(blocks == problem.tile[None, :, None, :])).sum().item())

    def fetch(self, problem: TorchProblem, product: torch.Tensor) -> tuple[int, str]:
        host = product.cpu().contiguous()
        there = TorchProblem(problem.left, problem.right, problem.tile.cpu(), problem.tf32, problem.flops)
        view = (ctypes.c_char * (host.numel() * host.element_size())).from_address(host.data_ptr())
        return self.wrong(there, host), hashlib.sha256(view).hexdigest()

    def memory_bytes(self, share: float) -> int:
        return int(torch.cuda.mem_get_info()[0] * share) if self._on_gpu else host_memory_bytes(share)

    def wrong_words(self, size_bytes: int, pattern: int) -> int:
        words = torch.empty(size_bytes // 8, dtype=torch.int64, device=self._device)
        for begin, end in stretches(len(words), WORDS_AT_ONCE):
            words[begin:end] = self._addresses(begin, end) ^ pattern
        return sum(
            int((words[begin:end] ^ pattern != self._addresses(begin, end)).sum().item())
            for begin, end in stretches(len(words), WORDS_AT_ONCE)
        )

    def _addresses(self, begin: int, end: int) -> torch.Tensor:
        return torch.arange(begin, end, dtype=torch.int64, device=self._device)
