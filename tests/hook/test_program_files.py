"""What a program names as the files that it has started with."""

from __future__ import annotations

import base64
import sys
import zlib

from understudy.program_files import PACKED_CHARACTERS_MAX, modules, pack, program_files, shared_objects

MAPS = """\
55d0-55d1 r--p 00000000 fe:00 131 /usr/bin/python3.11
55d1-55d2 r-xp 00001000 fe:00 131 /usr/bin/python3.11
7f00-7f01 r-xp 00000000 fe:00 132 /shared/my venv/libtorch_cuda.so
7f02-7f03 r--p 00000000 fe:00 133 /data/all tokens.bin
7f04-7f05 rw-s 00000000 00:01 134 /dev/shm/x
7f06-7f07 r-xp 00000000 fe:00 135 /shared/old.so (deleted)
7f08-7f09 r-xp 00000000 00:00 0 [vdso]
7f0a-7f0b r-xp 00000000 00:00 0
"""


def unpacked(packed: str) -> list[str]:
    return zlib.decompress(base64.b85decode(packed)).decode().split("\n")


def test_of_what_is_mapped_only_programs_are_named_and_no_data() -> None:
    assert shared_objects(MAPS.splitlines(keepends=True)) == ["/shared/my venv/libtorch_cuda.so", "/usr/bin/python3.11"]


def test_modules_are_named_by_the_file_that_is_read_first() -> None:
    found = modules()
    assert json_module in found
    assert not any(path.endswith("json/decoder.py") for path in found)
    assert all(path.startswith("/") for path in found)


json_module = sys.modules["json"].__spec__.cached  # type: ignore[union-attr]


def test_a_process_names_its_own_files() -> None:
    found = unpacked(program_files())
    assert {json_module} < set(found)
    assert any("/libc" in path for path in found)


def test_where_there_is_not_room_for_all_shared_objects_come_first() -> None:
    objects = [f"/lib/{number}.so" for number in range(100)]
    compiled = [f"/venv/{number * 7_919 % 1_000_003}{hash(number)}.pyc" for number in range(50_000)]
    packed = pack(objects, compiled)
    assert len(packed) <= PACKED_CHARACTERS_MAX
    assert unpacked(packed)[:100] == objects
    assert len(unpacked(packed)) > 1000
    assert len(pack([f"/{hash(str(one))}.so" for one in range(50_000)], [])) <= PACKED_CHARACTERS_MAX
