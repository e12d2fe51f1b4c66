"""State that lives on in the ranks that are left: where a gang of replicas goes on in its processes, no step is lost.

live = LiveState(model=model, optimizer=optimizer)     # outside of `train`: it outlives the gang

def train():
    dist.init_process_group("gloo")
    start = live.restore(load)            # load() where no rank has kept it: from a checkpoint
    ...
        loss.backward()
        with live.update(n + 1):          # training continues with step n + 1 when this has ended
            optimizer.step()

restartable(train)

A rank that is new gets the state of one that has kept it, over the process group. It is for replicated data
parallelism: where every rank has all of the state (DDP), or each shard is on several ranks (HSDP: FSDP within a
replica). There the model is made with the new gang's groups, and restore() is given it:

        start = live.restore(load, shard=mesh["shard"].get_local_rank(), model=model, optimizer=optimizer)

Tried with gloo; written for NCCL, and not tried there.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .never_raise import log
from .restart import Aborted
from .state_pickle import StatePickler, StateUnpickler, as_bytes, overwrite

NONE = -1
"""Stands for a step: this rank has not kept the state, or it is not whole."""

SAME_STEP_MAX = 2
"""Times that a gang goes on from the same step: a fault that comes again may be in the state."""

BUCKET_BYTES = 32 << 20


class LiveState:
    """`parts` are objects with state_dict() and load_state_dict(): model, optimizer, scheduler, what counts data. Make
    them, and this, outside of the function that restartable() calls.
    """

    def __init__(self, **parts: Any) -> None:
        self._parts = parts
        self._step = NONE
        self._shard = 0
        self._restored = (NONE, 0)
        """Step from which the last gangs went on, and how many of them."""
        self._aborted = Aborted.times
        """How often communicators had been aborted when a gang last agreed on a state: after more, it is not used."""

    @contextlib.contextmanager
    def update(self, step: int) -> Iterator[None]:
        """Around what changes the state. Training continues with `step` after it. An exception within leaves a state
        that is not whole, and is not used.
        """
        self._step = NONE
        yield
        self._step = int(step)

    def restore(
        self, load: Callable[[], int], trust: bool = True, group: Any = None, shard: int = 0, **parts: Any
    ) -> int:
        """The step with which all ranks of the group continue. Call it on every rank, before the model is wrapped.

        Of the ranks that have kept the state, those that are furthest give it to the others. `load`, called on every
        rank, restores a checkpoint and returns its step: where no rank has kept the state, where the last two gangs
        have gone on from the same one, and where a rank does not `trust` it, as after NaN in the loss.

        Where the state is sharded, `shard` is the number of this rank's part: ranks that have the same number have the
        same state. It goes on where each part is left on a rank, all of the same step. `parts` are those of this gang,
        in place of those before.
        """
        if shard != self._shard:  # it has another place now
            self._step, self._shard = NONE, shard
        before = self._state() if parts and self._step != NONE else {}
        self._parts = parts or self._parts
        kept, count = self._step, self._restored[1] if self._restored[0] == self._step else 0
        aborted = Aborted.times
        states = _gather((kept, count, int(trust and aborted == self._aborted), shard), group)
        newest = newest_whole([(state[0], state[3]) for state in states])
        times = max((state[1] for state in states if state[0] == newest), default=0)
        why = "" if newest != NONE else "no rank has kept it, or not all of it is left"
        if newest != NONE and not all(state[2] for state in states):
            why = "a rank does not trust it, or its communicators were aborted"
        elif newest != NONE and times >= SAME_STEP_MAX:
            why = f"the last {times} gangs have gone on from step {newest}"
        if why:
            if newest != NONE:
                log.warning("understudy: the state of the ranks is not used: %s", why)
            self._step = NONE
            self._step, self._aborted = int(load()), aborted
            return self._step
        if before and kept == newest:
            self._take_over(before)
        for one in sorted({state[3] for state in states}):
            has = {rank: state[0] == newest for rank, state in enumerate(states) if state[3] == one}
            self._give_and_take(has, newest, group)
        self._step, self._restored, self._aborted = newest, (newest, times + 1), aborted
        for part in self._parts.values():
            if hasattr(part, "zero_grad"):
                part.zero_grad()  # half of a gradient may be left
        return newest

    def _take_over(self, before: dict[str, Any]) -> None:
        """What this process has kept, into the parts that were made since."""
        file = io.BytesIO()
        pickler = StatePickler(file)
        pickler.dump(before)
        unpickler = StateUnpickler(io.BytesIO(file.getvalue()), _meshes(self._state()))
        state = unpickler.load()
        for new, old in zip(unpickler.tensors, pickler.tensors):
            new.copy_(old)
        for name, part in self._parts.items():
            part.load_state_dict(state[name])

    def _give_and_take(self, has: Mapping[int, bool], newest: int, group: Any) -> None:
        """Each rank without the state gets it from one that has the same, as far as there are enough."""
        holders = [rank for rank, kept in has.items() if kept]
        own = dist.get_rank(group)
        for number, rank in enumerate(rank for rank, kept in has.items() if not kept):
            source = holders[number % len(holders)]
            if own == source:
                _send(self._state(), rank, group)
            elif own == rank:
                self._step = NONE
                log.warning("understudy: step %d goes on with the state of rank %d: no file is read", newest, source)
                for name, state in _receive(source, self._state(), group).items():
                    self._parts[name].load_state_dict(state)

    def _state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}


def newest_whole(kept: Sequence[tuple[int, int]]) -> int:
    """Newest step of which every part is left; NONE if no step has one."""
    parts = {part for _, part in kept}
    steps = {step for step, _ in kept} - {NONE}
    return max((step for step in steps if {part for at, part in kept if at == step} == parts), default=NONE)


def _meshes(state: Any) -> list[Any]:
    pickler = StatePickler(io.BytesIO())
    pickler.dump(state)
    return pickler.meshes


def _gather(own: Sequence[int], group: Any) -> list[list[int]]:
    mine = torch.tensor(own, dtype=torch.int64, device=_device(group))
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, mine, group=group)
    return [one.tolist() for one in found]


def _device(group: Any) -> torch.device:
    """NCCL sends what is on a GPU alone."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")
    )


def _send(state: Any, to: int, group: Any) -> None:
    file, device = io.BytesIO(), _device(group)
    pickler = StatePickler(file)
    pickler.dump(state)
    words = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8).to(device)
    to = _global_rank(to, group)
    dist.send(torch.tensor([words.numel()], dtype=torch.int64, device=device), to, group)
    dist.send(words, to, group)
    for bucket in _buckets(pickler.tensors):
        dist.send(torch.cat([as_bytes(one).to(device) for one in bucket]), to, group)


def _receive(source: int, own: Any, group: Any) -> Any:
    device, source = _device(group), _global_rank(source, group)
    length = torch.empty(1, dtype=torch.int64, device=device)
    dist.recv(length, source, group)
    words = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    dist.recv(words, source, group)
    unpickler = StateUnpickler(io.BytesIO(words.cpu().numpy().tobytes()), _meshes(own))
    state = unpickler.load()
    overwrite(state, own)
    for bucket in _buckets(unpickler.tensors):
        parts = [as_bytes(one) for one in bucket]
        received = torch.empty(sum(one.numel() for one in parts), dtype=torch.uint8, device=device)
        dist.recv(received, source, group)
        for one, content in zip(parts, torch.split(received, [part.numel() for part in parts]), strict=True):
            one.copy_(content)
    return state


def _buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """The same ones on both sides."""
    bucket: list[torch.Tensor] = []
    size = 0
    for one in tensors:
        if not one.numel():
            continue
        bucket.append(one)
        size += one.numel() * one.element_size()
        if size >= BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def _global_rank(rank: int, group: Any) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)
