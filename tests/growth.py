"""What grows in memory: a walk over all that an object holds, and over all modules of the control plane."""

from __future__ import annotations

import functools
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from enum import Enum
from itertools import pairwise
from types import FunctionType, MethodType, ModuleType
from typing import Any

import msgspec
import numpy as np

OWN = ("understudy", "prometheus_client", "tests.")
NOT_OWN = ("tests.simulator.", "understudy_controlplane.migrations.")
ATOMS = (str, bytes, int, float, complex, Enum, type, ModuleType, type(None))


def sizes(root: object, name: str) -> Counter[str]:
    """How many elements all containers together have that are reached in the same way, such as `core.loop._seen`. The
    elements of a container are all called `[]`. Each container is counted once.
    """
    found: Counter[str] = Counter()
    seen: set[int] = set()
    held: list[object] = []  # what is made here: its id must stay its own
    queue: deque[tuple[str, Any]] = deque([(name, root), *_of_modules()])
    while queue:
        path, one = queue.popleft()
        if isinstance(one, ATOMS) or id(one) in seen:
            continue
        seen.add(id(one))
        held.append(one)
        if isinstance(one, np.ndarray | bytearray):
            found[path] += len(one)
        elif isinstance(one, Mapping):
            found[path] += len(one)
            queue.extend((f"{path}[]", each) for pair in list(one.items()) for each in pair)
        elif isinstance(one, list | tuple | Set | deque):
            found[path] += len(one)
            queue.extend((f"{path}[]", each) for each in list(one))
        else:
            queue.extend(_parts(path, one, found))
    return found


def _of_modules() -> Iterator[tuple[str, object]]:
    """Values of the control plane's modules and classes."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith("understudy_controlplane.") and not name.startswith(NOT_OWN):
            for key, value in vars(module).items():
                if isinstance(value, type) and value.__module__ == name:
                    yield from ((f"{name}.{key}.{own}", each) for own, each in vars(value).items())
                yield f"{name}.{key}", value


def _parts(path: str, one: Any, found: Counter[str]) -> Iterator[tuple[str, object]]:
    if isinstance(one, functools.partial):
        yield from ((path, each) for each in (one.func, one.args, one.keywords))
    elif isinstance(one, MethodType):
        yield path, one.__self__
    elif isinstance(one, FunctionType):
        yield from ((path, cell.cell_contents) for cell in one.__closure__ or () if _is_set(cell))
    elif isinstance(one, functools._lru_cache_wrapper):
        if one.cache_info().maxsize is None:
            found[f"{path}()"] += one.cache_info().currsize
    elif type(one).__name__ == "Remembered":  # by the simulator, around a store
        yield path, one._store
    elif _is_own(type(one)):
        for key in _names(type(one)):
            yield f"{path}.{key}", getattr(one, key, None)
        yield from ((f"{path}.{key}", value) for key, value in list(getattr(one, "__dict__", {}).items()))


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_own(of: type) -> bool:
    module = of.__module__ + "."
    return module.startswith(OWN) and not module.startswith(NOT_OWN)


def _names(of: Any) -> tuple[str, ...]:
    if issubclass(of, msgspec.Struct):
        return tuple(of.__struct_fields__)
    slots = (getattr(one, "__slots__", ()) for one in of.__mro__)
    return tuple(key for own in slots for key in ((own,) if isinstance(own, str) else own) if not key.startswith("__"))


def growing(measured: list[Counter[str]], least: int) -> dict[str, list[int]]:
    """What has grown by at least so much each time."""
    pairs = list(pairwise(measured))
    return {
        path: [one[path] for one in measured]
        for path in sorted(measured[-1])
        if all(after[path] - before[path] >= least for before, after in pairs)
    }
