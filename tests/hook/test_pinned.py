"""Memory pinned for copies from a GPU, by a stand-in for the CUDA runtime."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from understudy.pinned import Pin

pytestmark = pytest.mark.integration


class Runtime:
    def __init__(self, code: int = 0) -> None:
        self._code = code
        self.pinned: dict[int, int] = {}

    def cudaHostRegister(self, address: int, length: int, _: int) -> int:  # noqa: N802 - as CUDA names it
        if self._code == 0:
            self.pinned[address] = length
        return self._code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.pinned[address]
        return 0


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def test_memory_is_pinned_once_and_no_longer_when_other_memory_takes_its_place() -> None:
    runtime = Runtime()
    pin = Pin(runtime)
    small, large = mmap.mmap(-1, 4096), mmap.mmap(-1, 8192)
    for _ in range(2):
        pin.hold(memoryview(small))
        assert runtime.pinned == {address_of(small): 4096}
    pin.hold(memoryview(large))
    assert runtime.pinned == {address_of(large): 8192}
    pin.release()
    pin.release()
    assert runtime.pinned == {}


def test_where_the_driver_pins_nothing_that_is_logged_and_nothing_is_released(caplog: pytest.LogCaptureFixture) -> None:
    pin = Pin(Runtime(code=2))
    pin.hold(memoryview(mmap.mmap(-1, 4096)))
    pin.release()
    assert "CUDA error 2" in caplog.text
