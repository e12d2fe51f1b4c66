"""State in the memory of two nodes, saved often: where a node is lost, the gang goes on from there and reads no file.

peers = PeerState(monitor, model=model, optimizer=optimizer)

dist.init_process_group("gloo")
point = monitor.restore_point()
start = peers.restore(at_least=point.step)        # None: no whole save is that new
if start is None:
    start = load(point)                           # from the checkpoint that the control plane names

for n in monitor.steps(range(start, total)):
    train(n)
    if peers.due(n + 1, every=20):
        peers.save(n + 1)                         # on every rank; holds it up for a copy in its memory

Each rank gives its part to the keeper of its node (`understudy keeper`), and the keeper of another node copies it. A
save is whole when every rank's part is held. Restored is one that is whole, by all ranks, or none: for a gang of the
same size, within one job, requeues included.
"""

from __future__ import annotations

import io
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, SupportsInt

import torch
import torch.distributed as dist

from .identity import IdentityError, read_identity
from .keeper import KeeperError, KeeperLink, KeptPart, ReceivedPart, Staging, keeper_socket, sum_of
from .monitor import Monitor
from .never_raise import log, warn_once
from .pinned import Pin
from .state_pickle import StatePickler, StateUnpickler, as_bytes, fill, overwrite

ABSENT, BUSY, FAILED, ONE_PLACE, TWO_PLACES = -2, -1, 0, 1, 2
"""What has become of a rank's last part."""

SECOND_PLACE_SECONDS = 60
"""Time for the copy in another node. A save whose copies take longer counts as whole in one place."""

CUT_AGAIN_SECONDS = 0.2

SAME_SAVE_MAX = 2
"""Times that a job goes on from the same save: a fault that comes again may be in the state."""

LENGTH_BYTES = 8

Save = tuple[int, int, int]
"""Restart count, launch and step: a save of a later attempt is newer, whatever its step."""


class Node(NamedTuple):
    """One of the gang's, as its ranks see it."""

    name: str
    keeper: str
    """Address of its keeper; empty: there is none."""
    domain: str
    """What may fail with it: its switches, as Slurm names them; empty: not known."""


class Holding(NamedTuple):
    """A part that a keeper has."""

    save: Save
    rank: int
    world_size: int
    length: int
    checksum: str
    restored: int
    """Attempts that went on from its save."""


class Choice(NamedTuple):
    save: Save
    places: dict[int, list[tuple[str, Holding]]]
    """Rank → keepers that have its part."""


class PeerState:
    """`parts` are objects with state_dict() and load_state_dict(): model, optimizer, scheduler, what counts data."""

    def __init__(self, monitor: Monitor, **parts: Any) -> None:
        self._monitor, self._parts = monitor, parts
        self._link: KeeperLink | None = None
        self._handover: _Handover | None = None
        self._whole: Save | None = None
        self._last: Save | None = None
        self._has_buddy = False
        self._group: Any = None

    def restore(self, at_least: int = 0, trust: bool = True, group: Any = None) -> int | None:
        """The step with which all ranks of the group continue, whose state they have now; None: restore a checkpoint.
        Call it on every rank, before the first save(), and again whenever the gang has started again.

        Not one of an earlier step than `at_least`, nor where a rank does not `trust` it, nor where the last two
        attempts went on from the same save.
        """
        self._group = group
        self._connect()
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        name = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        mine = Node(name, self._link.address if self._link else "", _domain(os.environ))
        nodes = [Node(*one) for one in _gather(tuple(mine), group)]
        lists = nodes.index(mine) == rank  # the lowest of the node
        holdings = _gather((mine.keeper, self._list() if lists else [], trust, at_least), group)
        trusted, at_least = all(one[2] for one in holdings), max(one[3] for one in holdings)
        found = {keeper: [Holding(*one) for one in listed] for keeper, listed, *_ in holdings if listed}
        chosen = None
        self._whole = self._last = None
        for choice in choices(found, world_size, at_least) if trusted else []:
            if _least(int(self._take(choice, mine)), group):
                chosen = choice
                break
            log.warning("understudy: the save of step %d in memory cannot be restored by every rank", choice.save[2])
        pairs = buddies(list(dict.fromkeys(nodes)))
        self._has_buddy = mine in pairs
        if lists and self._handover is not None:
            ranks_of = {one: [number for number, node in enumerate(nodes) if node == one] for one in pairs}
            self._handover.wards = [(one.keeper, ranks_of[one]) for one, buddy in pairs.items() if buddy == mine]
        if self._handover is not None:
            self._handover.wake()
        if lists and chosen is not None:
            self._try("restored", save=chosen.save, **_attempt())
        if chosen is None:
            return None
        self._whole = chosen.save
        log.info("understudy: step %d goes on with what nodes had in memory: no file is read", chosen.save[2])
        return chosen.save[2]

    def due(self, step: SupportsInt, every: int = 0) -> bool:
        """True: save now in memory, as Checkpoints.due, on every rank in each step, by the interval that is best
        for memory. The control plane orders that where the training calls Checkpoints.due as well. A training that
        saves by a number of its own does not call it.
        """
        return self._monitor.checkpoints._due(step, every, in_memory=True)

    def save(self, step: int) -> bool:
        """True if every rank begins to save: not while the last save is not whole, nor where a rank has no keeper, or
        saw NaN or a jump in its loss. Call it on every rank after the same step; training continues with `step`.
        """
        begun, handover = time.perf_counter(), self._handover
        state = ABSENT if handover is None else handover.state
        if self._monitor.has_anomaly:
            warn_once("peer anomaly", "the loss of this rank is NaN or has jumped: the gang saves nothing in memory")
            state = BUSY
        agreed = _least(state, self._group)
        if handover is None or agreed in (ABSENT, BUSY):
            if agreed == ABSENT:
                warn_once("peer absent", "a rank of the gang has no keeper: nothing is saved in memory")
            return False
        if agreed >= ONE_PLACE and self._last is not None:
            self._whole = self._last
        attempt = _attempt()
        self._last = (attempt["restart_count"], attempt["launch"], int(step))
        place = {"rank": dist.get_rank(self._group), "world_size": dist.get_world_size(self._group)}
        task = {"save": self._last, "whole": self._whole, **place}
        handover.begin(self._state(), task, self._has_buddy, begun)
        return True

    def wait(self, timeout_seconds: float = 2 * SECOND_PLACE_SECONDS) -> bool:
        """Waits until this rank's last part is held. Whether it is."""
        return self._handover is not None and self._handover.wait(timeout_seconds) >= ONE_PLACE

    def free(self) -> None:
        """The training is over: this node's keeper forgets the job. Call it on every rank."""
        if self._link is not None:
            self.wait()
            self._try("free")

    def _connect(self) -> None:
        """What is under way for the gang before ends, and so do the copies for its nodes."""
        if self._link is not None:
            self._link.close()
            self._link = None
        try:
            path, job_id = keeper_socket(os.environ), read_identity(os.environ).job_id
            self._link = KeeperLink(path, job_id)
            if self._handover is None:
                self._handover = _Handover(KeeperLink(path, job_id))
                weakref.finalize(self, self._handover.close)
            else:
                self._handover.stop()
        except (KeeperError, IdentityError) as error:
            if self._handover is not None:
                self._handover.close()
                self._handover = None
            warn_once("keeper", "nothing is saved in memory from this rank: %s", error)

    def _list(self) -> list[tuple[Any, ...]]:
        answer = self._try("list")
        if answer is None:
            return []
        return [(tuple(one["save"]), *(one[name] for name in Holding._fields[1:])) for one in answer.get("parts", [])]

    def _take(self, choice: Choice, mine: Node) -> bool:
        """This rank's part of it, into model and optimizer. Whether it is there and as it was saved."""
        rank = dist.get_rank(self._group)
        handover, link = self._handover, self._link
        if handover is None or link is None:
            return False
        if handover.kept is not None and handover.kept[0] == choice.save:  # this process has it still
            try:
                self._load(KeptPart(handover.staging.make_room(handover.kept[1])[: handover.kept[1]]))
            except Exception as error:  # noqa: BLE001 - then the keeper is asked
                log.warning("understudy: the state of step %d cannot be loaded: %r", choice.save[2], error)
            else:
                return True
        own_first = sorted(choice.places[rank], key=lambda place: place[0] != mine.keeper)
        for keeper, held in own_first:
            try:
                handover.kept = None
                named = (
                    {} if keeper == mine.keeper else {"keeper": keeper}
                )  # this node's keeper fetches it, and holds it
                self._load(link.part(**named, **held._asdict()))
                handover.room = held.length
            except KeeperError as error:
                log.warning("understudy: the part of rank %d from %s: %s", rank, keeper, error)
            except Exception as error:  # noqa: BLE001 - then a checkpoint is restored
                log.warning("understudy: the part of rank %d from %s cannot be loaded: %r", rank, keeper, error)
            else:
                return True
        return False

    def _load(self, part: ReceivedPart | KeptPart) -> None:
        """Nothing is given to model and optimizer before all of it was verified, but they may be overwritten."""
        own = self._state()
        current = StatePickler(io.BytesIO())
        current.dump(own)
        start = bytearray(LENGTH_BYTES)
        part.read_into(memoryview(start))
        pickled = bytearray(int.from_bytes(start, "big"))
        part.read_into(memoryview(pickled))
        unpickler = StateUnpickler(io.BytesIO(pickled), current.meshes)
        state = unpickler.load()
        overwrite(state, own)
        fill(unpickler.tensors, part.read_into)
        part.finish()
        for name, one in self._parts.items():
            one.load_state_dict(state[name])
            if hasattr(one, "zero_grad"):
                one.zero_grad()  # half of a gradient may be left

    def _try(self, kind: str, **fields: Any) -> dict[str, Any] | None:
        try:
            return self._link.ask(kind, **fields) if self._link is not None else None
        except KeeperError as error:
            log.warning("understudy: %s", error)
            return None

    def _state(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}


def buddies(nodes: Sequence[Node]) -> dict[Node, Node]:
    """Each node with a keeper → the one that copies what it holds. Each copies from one. As many as possible are in
    another domain: sorted by domain, they are as far apart as the largest domain is large.
    """
    able = sorted((one for one in nodes if one.keeper), key=lambda one: one.domain)
    if len(able) < 2:
        return {}
    largest = max(sum(one.domain == other.domain for one in able) for other in able)
    shift = largest % len(able) or 1
    return {one: able[(number + shift) % len(able)] for number, one in enumerate(able)}


def choices(found: dict[str, list[Holding]], world_size: int, at_least: int) -> list[Choice]:
    """Saves of which every rank's part is held somewhere, newest first. `found` is by the keeper's address."""
    places: dict[Save, dict[int, list[tuple[str, Holding]]]] = {}
    used_up: set[Save] = set()
    for keeper, holdings in sorted(found.items()):
        for held in holdings:
            if held.restored >= SAME_SAVE_MAX:
                used_up.add(held.save)
            if held.world_size == world_size:
                places.setdefault(held.save, {}).setdefault(held.rank, []).append((keeper, held))
    for save in sorted(used_up):
        warn_once(f"used up {save}", "the last %d attempts went on from step %d: not again", SAME_SAVE_MAX, save[2])
    return [
        Choice(save, places[save])
        for save in sorted(places, reverse=True)
        if len(places[save]) == world_size and save not in used_up and save[2] >= at_least
    ]


class _Handover:
    """Gives this rank's parts to the keeper, in a thread of its own."""

    def __init__(self, link: KeeperLink) -> None:
        self._link = link
        self.staging, self._pin = Staging(), Pin()
        self.wards: list[tuple[str, list[int]]] = []
        """Addresses and ranks whose parts this node's keeper copies until this connection ends."""
        self._followed = 0
        self.kept: tuple[Save, int] | None = None
        """Save and length of the part that is in its memory, as the keeper has it."""
        self.room = 0
        """Bytes that the next part will need: got in this thread, so that the training does not wait for them."""
        self._state = FAILED
        self._settled = threading.Condition()
        self._tasks: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="understudy-peer", daemon=True).start()

    @property
    def state(self) -> int:
        return self._state

    def begin(self, state: dict[str, Any], task: dict[str, Any], has_buddy: bool, begun: float) -> None:
        """Copies the state; what follows holds nothing up. A fault here is no reason to end the training. `begun` is
        since when the training waits.
        """
        self._set(BUSY)
        self.kept = None
        try:
            length = _copy(state, self.staging, self._pin)
        except Exception as error:  # noqa: BLE001 - such as no memory
            warn_once("peer copy", "the state cannot be copied, and is not saved in memory: %r", error)
            self._set(FAILED)
        else:
            task["blocked_seconds"] = round(time.perf_counter() - begun, 6)
            self._tasks.put({**task, "length": length, "has_buddy": has_buddy})

    def stop(self) -> None:
        """What is under way, and what its keeper does for this connection. Afterwards its memory is free."""
        self.wards = []
        self._link.cut()
        deadline = time.monotonic() + SECOND_PLACE_SECONDS
        while self.wait(CUT_AGAIN_SECONDS) == BUSY and time.monotonic() < deadline:
            self._link.cut()  # it may have connected again meanwhile

    def wait(self, timeout_seconds: float) -> int:
        with self._settled:
            self._settled.wait_for(lambda: self._state != BUSY, timeout_seconds)
            return self._state

    def wake(self) -> None:
        """Follows, and gets memory, at once."""
        self._tasks.put({})

    def close(self) -> None:
        self._tasks.put(None)

    def _set(self, state: int) -> None:
        with self._settled:
            self._state = state
            self._settled.notify_all()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            state = FAILED
            try:
                self._follow()
                if task:
                    state = self._give(task)
                elif self.room:
                    self.staging.make_room(self.room)
            except KeeperError as error:
                what = f"the save of step {task['save'][2]} is not held in memory" if task else "no copies are made"
                warn_once("peer put", "%s: %s", what, error)
            except Exception as error:  # noqa: BLE001 - a fault in the hook must not end the training
                warn_once("peer thread", "saving in memory failed: %r", error)
            if task:
                self._set(state)
        self._link.close()
        self._pin.release()
        self.staging.close()

    def _follow(self) -> None:
        """Again after the keeper was restarted."""
        try:
            self._link.ask("hello")
        except KeeperError:  # it was restarted, or stop() has cut the connection
            self._link.ask("hello")
        if self._followed != self._link.connections:
            for address, ranks in self.wards:
                self._link.ask("follow", ranks=ranks, keeper=address)
            self._followed = self._link.connections

    def _give(self, task: dict[str, Any]) -> int:
        has_buddy, length = task.pop("has_buddy"), task["length"]
        checksum = sum_of(self.staging.make_room(length)[:length])
        if not self._link.ask("put", self.staging.descriptor, checksum=checksum, **task).get("held"):
            return FAILED
        self.kept = (task["save"], length)
        if not has_buddy:
            return ONE_PLACE
        of_part = {"save": task["save"], "rank": task["rank"]}
        places = int(self._link.ask("copied", seconds=SECOND_PLACE_SECONDS, **of_part)["places"])
        if places == ONE_PLACE:
            warn_once("peer place", "no other node has copied step %d: this node alone has it", task["save"][2])
        return min(places, TWO_PLACES)


def _copy(state: dict[str, Any], staging: Staging, pin: Pin) -> int:
    """Length. Tensors of a GPU are copied side by side."""
    file = io.BytesIO()
    pickler = StatePickler(file)
    pickler.dump(state)
    pickled = file.getbuffer()
    tensors = [as_bytes(one) for one in pickler.tensors]
    length: int = LENGTH_BYTES + len(pickled) + sum(one.numel() for one in tensors)
    content = staging.make_room(length)
    on_gpu = any(one.is_cuda for one in tensors)
    if on_gpu:
        pin.hold(content)
    content[:LENGTH_BYTES] = len(pickled).to_bytes(LENGTH_BYTES, "big")
    content[LENGTH_BYTES : LENGTH_BYTES + len(pickled)] = pickled
    at = LENGTH_BYTES + len(pickled)
    for one in tensors:
        if one.numel():
            torch.frombuffer(content, dtype=torch.uint8, count=one.numel(), offset=at).copy_(one, non_blocking=True)
        at += one.numel()
    if on_gpu:
        torch.cuda.synchronize()
    return length


def _gather(own: Any, group: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group)
    return found


def _least(own: int, group: Any) -> int:
    device = "cpu" if dist.get_backend(group) != "nccl" else torch.device("cuda", torch.cuda.current_device())
    one = torch.tensor([own], dtype=torch.int64, device=device)
    dist.all_reduce(one, dist.ReduceOp.MIN, group)
    return int(one.item())


def _attempt() -> dict[str, int]:
    identity = read_identity(os.environ)
    return {"restart_count": identity.restart_count, "launch": identity.launch}


def _domain(environment: Any) -> str:
    """The switches above this node, by Slurm's topology plugin; empty: it has none."""
    switches: Iterable[str] = environment.get("SLURM_TOPOLOGY_ADDR", "").split(".")[:-1]
    return ".".join(switches)
