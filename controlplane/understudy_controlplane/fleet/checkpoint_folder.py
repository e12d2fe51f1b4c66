"""Names, sizes and small reads show whether a checkpoint's folder is whole.

Frameworks write a checkpoint as many files, and one of them last. `LAYOUTS` names these files as each framework's save
code does; the other rules hold for all layouts. A file that was not looked into is a remark of its own, so that nothing
is called whole on trust. Pickles are never loaded; what tensors hold is never looked at.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from understudy_wire.checkpoint_formats import (
    ZIP_TAIL_BYTES,
    safetensors_header_bytes,
    safetensors_tensors,
    shards_named,
    zip_doubt,
)

LINK = -1
"""Size of a link, which is not followed."""

JSON_BYTES_MAX = 16 << 20
"""Largest index or header that is parsed; an index of a model of 671 billion parameters has 9 MB."""

BLOCK_BYTES = 8 << 20
SHOWN_MAX = 2
TRACKER_BYTES_MAX = 1024

STEP = re.compile(
    r"(?:^|[^0-9])(?:checkpoint_\d+_|(?:step|checkpoint|(?<!hpc_)ckpt|iter(?:ation)?|(?<=-)ba)[-_=]?)"
    r"0*(\d{1,15})(?!\d)"
)
"""A number in a name; of fairseq's `checkpoint_EPOCH_UPDATES` the second, of Composer's `ep0-ba100` the batch.
Lightning counts `hpc_ckpt_N`: that is no step.
"""

UNFINISHED_FOLDER = re.compile(r"^tmp[-_.]|[-_.](?:tmp|partial|incomplete)(?:$|[-_.])")
"""`tmp-checkpoint-N` of transformers around 4.38, `N.orbax-checkpoint-tmp-TIME`, and habits of others."""

TRACKERS = ("latest", "latest_universal", "latest_checkpointed_iteration.txt")
"""Files beside checkpoints, written last, that name the newest: of DeepSpeed, of its universal checkpoints, of Megatron
and verl.
"""

FOLDER_OF_A_RANK = re.compile(r"(?:mp_rank_\d+|tp_rank_\d+_pp_rank_\d+)(?:_fsdp_shard_\d+)?|fsdp_shard_\d+")
"""NeMo 1 writes a file of each save of a run into each (inject_model_parallel_rank of nemo/utils/model_utils.py)."""

SINGLE = (".pt", ".pth", ".ckpt", ".safetensors")
"""Suffixes of a file that may be a checkpoint by itself."""

PARTS = (*SINGLE, ".bin", ".pkl", ".distcp", ".metadata", ".ocdbt", ".index.json")
"""Suffixes of what a checkpoint's folder holds: without any of them it is none."""


class Unread(Exception):
    """A file is not looked into, and why."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint: a folder and everything below it, or a single file."""

    name: str
    sizes: Mapping[str, int]
    """Bytes of each file, by its path below the folder."""
    read: Callable[[str, int, int], bytes]
    """Path, place, length. Raises Unread, and OSError for what cannot be read."""
    folders: frozenset[str] = frozenset()
    """Paths of the folders below it."""
    beside: frozenset[str] = frozenset()
    """Names in the folder above."""
    trackers: Mapping[str, str] = field(default_factory=dict)
    """What `TRACKERS` in the folder above say, by name."""


class Remark(NamedTuple):
    file: str
    state: str
    why: str = ""


UNREAD = "not looked into"


class Judgement(NamedTuple):
    kind: str
    doubt: str
    """What speaks against it; empty: it is whole, but for what was not looked at."""
    unread: str


class Need(NamedTuple):
    file: str
    why: str = ""
    pattern: str = ""
    """Files that count as well."""
    when: str = ""
    """Needed only where such a path exists."""


class Layout(NamedTuple):
    kind: str
    sign: str
    """A path shows the layout: the folder's name, and what lies in it. Names of folders end with a slash."""
    needs: tuple[Need, ...] = ()


LAST = "it is written last"

LAYOUTS = (
    Layout(
        "Accelerate",
        r"/random_states_\d+\.pkl$|/(?:scheduler|sampler)(?:_\d+)?\.bin$"
        r"|^(?!(?:tmp-)?checkpoint-\d+/)[^/]+/pytorch_model_fsdp_\d+/",
        (
            Need("random_states_0.pkl", LAST, r"random_states_\d+\.pkl|trainer_state\.json"),
            Need(
                "optimizer.bin",
                "",
                r"optimizer(?:_\d+)?(?:_rank\d+)?\.bin|optimizer_\d+/.+|pytorch_model(?:_\d+)?/.+",
                r"scheduler(?:_\d+)?\.bin",
            ),
            Need("model.safetensors", "", r".*\.safetensors|pytorch_model.*|.*/.+"),
        ),
    ),
    Layout(
        "Hugging Face Trainer",
        r"/trainer_state\.json$|^(?:tmp-)?checkpoint-\d+/(?:(?:pytorch_|adapter_)?model[^/]*\.(?:safetensors|bin)$"
        r"|rng_state(?:_\d+)?\.pth$|global_step\d+/|pytorch_model_fsdp_\d+/)",
        (
            Need("trainer_state.json", LAST),
            Need(
                "optimizer.pt",
                "training cannot continue as it was",
                r"optimizer\.(?:pt|bin)|optimizer_\d+/.+|global_step\d+/.+|rank\d+-of-\d+-optimizer\.pt",
                r"scheduler\.pt|rng_state(?:_\d+)?\.pth",
            ),
            Need(
                "model.safetensors",
                "",
                r".*\.safetensors|(?:pytorch_model|adapter_model|model).*|global_step\d+/.+",
                r"trainer_state\.json",
            ),
        ),
    ),
    Layout("NeMo 1", r"^[^/]+\.ckpt/[^/]*(?:_rank|_shard)_\d+/[^/]+\.ckpt$"),
    Layout(
        "NeMo",
        r"^[^/]*(?:step|epoch)=[^/]*/weights/",
        (Need("weights/metadata.json", LAST, "", r"weights/.*(?:common\.pt|\.distcp|\.metadata)"),),
    ),
    Layout(
        "NeMo Automodel",
        r"^epoch_\d+_step_\d+/(?:model|optim)/",
        (
            Need("model", "", r"model/.+"),
            Need("optim", "training cannot continue as it was", r"optim/.+"),
        ),
    ),
    Layout("Megatron, legacy", r"/mp_rank_\d+(?:_\d+)*/"),
    Layout(
        "DeepSpeed universal",
        r"/zero/.+/fp32\.pt$|^global_step\d+_universal/",
        (Need("mp_rank_00_model_states.pt", "it is copied last", r".*_model_states\.pt"),),
    ),
    Layout("DeepSpeed", r"_(?:model|optim)_states\.pt$"),
    Layout(
        "Lightning",
        r"^[^/]*\.ckpt/.*\.distcp$",
        (Need("meta.pt", LAST, "", r".*\.distcp"),),
    ),
    Layout(
        "Megatron",
        r"^(?:iter_\d{7}|release|[^/]*(?:step|epoch)=[^/]*)/(?:common\.pt|metadata\.json|.*\.distcp|.*\.metadata)$",
        (Need("metadata.json", LAST, "", r"common\.pt"),),
    ),
    Layout("Orbax", r"/(?:_CHECKPOINT_METADATA|manifest\.ocdbt|commit_success\.txt)$|^[^/]*\.orbax-checkpoint-tmp"),
    Layout("torch.distributed.checkpoint", r"/(?:__\d+_\d+\.distcp|(?:__\d+)?\.metadata)$"),
    Layout("safetensors", r"\.safetensors(?:\.index\.json)?$"),
    Layout("torch.save", r"\.(?:pt|pth|ckpt|bin)$"),
)

SIGN_OF_A_FOLDER = re.compile(
    "|".join(f"(?:{one.sign})" for one in LAYOUTS[:-2]) + r"|\.(?:safetensors|bin)\.index\.json$"
)
"""Shows that a folder is one checkpoint, whatever its name."""

ALONGSIDE = (
    (
        r"((?:.*/)?)(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt",
        ("{0}mp_rank_{2}_model_states.pt", "{0}zero_pp_rank_{1}_mp_rank_{2}_model_states.pt"),
    ),
    (
        r"((?:.*/)?)zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt",
        (
            "{0}zero_pp_rank_{1}_mp_rank_{2}_optim_states.pt",
            "{0}bf16_zero_pp_rank_{1}_mp_rank_{2}_optim_states.pt",
            "{0}fp16_zero_pp_rank_{1}_mp_rank_{2}_optim_states.pt",
        ),
    ),
    (r"((?:.*/)?mp_rank_[\d_]+/)(?!.*\.ckpt$).*", ("{0}model_optim_rng.pt", "{0}model_rng.pt")),
)
"""DeepSpeed (ZeRO's parts) and Megatron (a model-parallel rank) write one of the others beside the first."""

NUMBERED = re.compile(r"(?:rank|shard|rng_state|random_states)[-_]?(\d{1,9})(?:_(\d{1,9}))?(?:_(\d{1,9}))?(?!\d)")
"""Numbers of ranks and shards: of files that differ only in these, none between the lowest and the highest is left out.
A node's own disk holds those of its ranks alone.
"""

OF_ALL = re.compile(r"(?<!\d)(\d{1,9})-of-\d{1,9}(?!\d)|world_size_\d{1,9}_rank_(\d{1,9})(?!\d)")
"""A number, and of how many: in names of Hugging Face and torch_xla, and of verl."""

RANKS_MAX = 1_000_000
"""More of them are numbers of something else."""

RANKS_IN_A_NAME_MAX = 4
"""Names of data, tensor, pipeline and expert parallel ranks."""


def folder_step(name: str, kind: str = "") -> int | None:
    """The step that a name says. Orbax names a folder by the number alone."""
    numbers = STEP.findall(name.lower()) or re.findall(
        r"^(\d{1,15})(?:\.orbax|$)" if kind == "Orbax" else r"^(\d{1,15})\.orbax", name
    )
    return int(numbers[-1]) if numbers else None


def is_checkpoint(name: str, paths: Iterable[str]) -> bool:
    """True if a folder of this name, with these names in it, is one checkpoint. Names of folders end with a slash."""
    return any(SIGN_OF_A_FOLDER.search(f"{name}/{path}") for path in paths)


def unfinished_marker(name: str) -> str:
    """What lies beside a checkpoint of NeMo while it is written or deleted."""
    return name.removesuffix(".ckpt").removesuffix("-EMA") + "-unfinished"


def without_rank(name: str) -> str:
    """What the names of one checkpoint's files have in common, in a folder of several checkpoints."""
    return OF_ALL.sub(lambda match: re.sub(r"^\d+|\d+$", "*", match[0], count=1), NUMBERED.sub(_starred, name))


def _starred(match: re.Match[str]) -> str:
    return re.sub(r"\d.*", "*", match[0])


def judge(folder: Folder) -> Judgement:
    paths = [*folder.sizes, *(f"{one}/" for one in folder.folders)]
    layout = next(
        (one for one in LAYOUTS if any(re.search(one.sign, f"{folder.name}/{path}") for path in paths)), LAYOUTS[-1]
    )
    found = [
        *_unfinished(folder, layout),
        *_needed(paths, layout.needs),
        *_numbered(folder.sizes),
        *_alongside(paths, layout),
        *_of_distributed(folder),
        *_of_deepspeed(folder),
        *_of_megatron(folder),
        *_of_indexes(folder),
        *_of_contents(folder),
    ]
    doubts, unread = (
        [one for one in dict.fromkeys(found) if (one.state == UNREAD) is wanted] for wanted in (False, True)
    )
    return Judgement(layout.kind, _text_of(doubts), _text_of(unread))


def parts_left_out(sizes: Mapping[str, int], other: str, others: Mapping[str, int]) -> str:
    """Parts of a model that another checkpoint of the run has. Names do not show how many parts there are; where those
    that both have are of one size, the gang was of one size as well.
    """
    own, more = _parts(sizes), _parts(others)
    common = own.keys() & more.keys()
    if not common or any(abs(own[one] - more[one]) > more[one] / 10 for one in common):
        return ""
    families = {re.sub(r"\d+", "#", one) for one in own}
    missing = [one for one in sorted(more.keys() - common) if re.sub(r"\d+", "#", one) in families]
    return _text_of([Remark(one, "missing", f"{other} has more parts") for one in missing])


def _parts(sizes: Mapping[str, int]) -> dict[str, int]:
    pattern = re.compile(
        r"(.*_(?:rank|shard)_\d+/)[^/]+\.ckpt$|[^/]+_(?:model|optim)_states\.pt$|mp_rank_[\d_]+/[^/]+$"
    )
    found = ((pattern.search(path), path) for path in sizes)
    return {match[1] or match[0]: sizes[path] for match, path in found if match is not None}


def named_but_gone(trackers: Mapping[str, str], folders: Iterable[str]) -> Iterator[str]:
    """What trackers beside these folders name that is not there."""
    known = set(folders)
    for tracker, text in trackers.items():
        step = _tracked(text)
        if not text:
            yield f"{tracker} is empty"
        elif step is not None and text not in known and step not in map(folder_step, known):
            yield f"{tracker} names {f'step {step}' if text.isdecimal() else text}, which is not there"


def _tracked(text: str) -> int | None:
    return int(text[:15]) if text.isdecimal() else folder_step(text)


def _text_of(remarks: list[Remark]) -> str:
    files: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in remarks:
        files[one.state, one.why].append(one.file)
    return "; ".join(
        f"{_names(names)} {'is' if len(names) == 1 else 'are'} {state}{f': {why}' if why else ''}"
        for (state, why), names in files.items()
    )


def _names(names: list[str]) -> str:
    shown, more = names[:SHOWN_MAX], len(names) - SHOWN_MAX
    return f"{', '.join(shown)} and {more} more" if more > 0 else " and ".join(shown)


def _unfinished(folder: Folder, layout: Layout) -> Iterator[Remark]:
    if UNFINISHED_FOLDER.search(folder.name):
        yield Remark(folder.name, "the name under which it is written", "it was not renamed")
    if (marker := unfinished_marker(folder.name)) in folder.beside:
        yield Remark(marker, "still there", "NeMo removes it when the save, or the deletion, has ended")
    step = folder_step(folder.name)
    for tracker, text in folder.trackers.items() if layout.kind in ("DeepSpeed", "Megatron, legacy") else ():
        last = _tracked(text)
        if tracker != "latest_universal" and step is not None and last is not None and last < step:
            yield Remark(tracker, f"still at step {last}", LAST)


def _needed(paths: list[str], needs: Iterable[Need]) -> Iterator[Remark]:
    for one in needs:
        pattern = re.compile(one.pattern or re.escape(one.file))
        if any(pattern.fullmatch(path) for path in paths):
            continue
        if not one.when or any(re.fullmatch(one.when, path) for path in paths):
            yield Remark(one.file, "missing", one.why)


def _numbered(names: Iterable[str]) -> Iterator[Remark]:
    for family, found in _families(NUMBERED, names, RANKS_IN_A_NAME_MAX).items():
        yield from _gaps(family, [_span(set(some)) for some in zip(*found, strict=True)], found)
    for family, found in _families(OF_ALL, names, 1).items():
        total = re.search(r"\0-of-(\d+)|size_(\d+)_rank_\0", family.template)
        count = int(total[1] or total[2]) if total is not None else 0
        start = 0 if "_rank_" in family.template or (0,) in found else 1
        yield from _gaps(family, [range(start, start + count)], found)
        index = re.fullmatch(r"((?:.*/)?(?:pytorch_|adapter_)?model)-\0-of-\d+(\..*)", family.template)
        if index is not None and f"{index[1]}{index[2]}.index.json" not in names:
            yield Remark(f"{index[1]}{index[2]}.index.json", "missing", LAST)


class _Family(NamedTuple):
    template: str
    """A name with a zero byte in place of each number."""
    widths: tuple[int, ...]

    def name(self, numbers: Iterable[int]) -> str:
        first, *parts = self.template.split("\0")
        filled = zip(numbers, self.widths, parts, strict=True)
        return first + "".join(f"{number:0{width}}{part}" for number, width, part in filled)


def _families(pattern: re.Pattern[str], names: Iterable[str], most: int) -> dict[_Family, set[tuple[int, ...]]]:
    """Numbers that names have, by what the names have in common."""
    widths: dict[str, tuple[int, ...]] = {}
    families: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for name in names:
        matches = itertools.islice(pattern.finditer(name), most)
        spans = [one.span(group) for one in matches for group in range(1, pattern.groups + 1) if one[group]]
        if spans:
            ends = [0, *(end for _, end in spans)]
            parts = [name[end:begin] for end, begin in zip(ends, [*(begin for begin, _ in spans), None], strict=True)]
            numbers = [name[begin:end] for begin, end in spans]
            template, digits = "\0".join(parts), tuple(map(len, numbers))
            families[template].add(tuple(map(int, numbers)))
            widths[template] = tuple(map(min, digits, widths.get(template, digits)))
    return {_Family(template, widths[template]): found for template, found in families.items()}


def _span(numbers: set[int]) -> range:
    """All numbers from the lowest to the highest; each eighth, say, where these are the first ranks of nodes."""
    lowest, end = min(numbers), max(numbers) + 1
    span = range(lowest, end, math.gcd(*(one - lowest for one in numbers)) or 1)
    return span if len(numbers) > 2 and len(span) == len(numbers) else range(lowest, end)


def _gaps(family: _Family, spans: list[range], found: set[tuple[int, ...]]) -> Iterator[Remark]:
    total = math.prod(map(len, spans))
    if total <= RANKS_MAX:
        yield from _gone((family.name(one) for one in _grid(spans) if one not in found), total - len(found))


def _grid(spans: list[range]) -> Iterator[tuple[int, ...]]:
    """The same as itertools.product, which would make all numbers of each span first."""
    if not spans:
        yield ()
        return
    for one in spans[0]:
        yield from ((one, *rest) for rest in _grid(spans[1:]))


def _gone(names: Iterable[str], count: int) -> Iterator[Remark]:
    shown = list(itertools.islice(names, max(min(count, SHOWN_MAX), 0)))
    yield from (Remark(one, "missing") for one in shown)
    if count > len(shown):
        yield Remark(f"{count - len(shown)} more of its kind", "missing")


def _alongside(paths: list[str], layout: Layout) -> Iterator[Remark]:
    """A universal checkpoint has ZeRO's parts in another form."""
    known, families = set(paths), {re.sub(r"\d+", "#", path) for path in paths}
    for pattern, others in ALONGSIDE if layout.kind != "DeepSpeed universal" else ():
        for path in paths:
            match = re.fullmatch(pattern, path)
            wanted = [one.format(*match.groups()) for one in others] if match is not None else []
            if wanted and known.isdisjoint(wanted):
                alike = (one for one in wanted if re.sub(r"\d+", "#", one) in families)
                yield Remark(next(alike, wanted[0]), "missing")


def _of_distributed(folder: Folder) -> Iterator[Remark]:
    """torch.distributed.checkpoint renames `.metadata` to its name last. Shards that it does not name are empty: their
    ranks had nothing to write.
    """
    shards: dict[str, set[str]] = defaultdict(set)
    manifests: dict[str, set[str]] = defaultdict(set)
    for path in folder.sizes:
        match = re.fullmatch(r"((?:.*/)?)(?:(__\d{1,9}_\d{1,9}\.distcp)|((?:__\d{1,9})?\.metadata))", path)
        if match is not None:
            (shards if match[2] else manifests)[match[1]].add(match[2] or match[3])
    for place in sorted(shards.keys() | manifests.keys()):
        if manifests[place]:
            yield from _of_shards(folder, place, shards[place], manifests[place])
        else:
            yield Remark(f"{place}.metadata", "missing", "the save did not come to its end")


def _of_shards(folder: Folder, place: str, shards: set[str], manifests: set[str]) -> Iterator[Remark]:
    named: set[str] = set()
    for manifest in sorted(manifests):
        try:
            named |= _named_by(folder, place + manifest)
        except Unread as error:
            yield Remark(place + manifest, UNREAD, str(error))
        except ValueError as error:
            yield Remark(place + manifest, str(error))
        except OSError as error:
            yield Remark(place + manifest, "not readable", error.strerror or "")
    if not named:
        yield from _left_out(place, shards)
    for shard in sorted(named or shards):
        if shard not in shards:
            yield Remark(place + shard, "missing")
        elif not folder.sizes[place + shard]:
            yield Remark(place + shard, "empty")


def _left_out(place: str, shards: set[str]) -> Iterator[Remark]:
    """Ranks between others that have no shard: no manifest says which shards there are."""
    ranks = {int(one[2:].partition("_")[0]) for one in shards}
    count = max(ranks, default=-1) + 1
    yield from _gone((f"{place}__{one}_0.distcp" for one in range(count) if one not in ranks), count - len(ranks))


def _named_by(folder: Folder, manifest: str) -> set[str]:
    """Shards that a manifest names; none where it is no pickle. Raises ValueError, Unread or OSError."""
    size = folder.sizes[manifest]
    if not size:
        raise ValueError("empty")
    start = folder.read(manifest, 0, 1)
    if start == b"\0":
        raise ValueError("full of zeros")
    if start != b"\x80":
        return set()
    named, at, last = set[str](), 0, b""
    while at < size:
        block = folder.read(manifest, at, min(BLOCK_BYTES, size - at))
        if not block:
            break
        named |= shards_named(last[-64:] + block)
        at, last = at + len(block), block
    if not last.endswith(b"."):
        raise ValueError("cut")
    return named


def _of_deepspeed(folder: Folder) -> Iterator[Remark]:
    """Below a Trainer's or Lightning's folder, DeepSpeed's own has `latest` beside it."""
    parts = (re.fullmatch(r"((?:.*/)?[^/]+)/[^/]+_(?:model|optim)_states\.pt", path) for path in folder.sizes)
    tags = {part[1] for part in parts if part is not None}
    for tag in tags:
        tracker = f"{tag[: tag.rfind('/') + 1]}latest"
        if tracker not in folder.sizes:
            yield Remark(tracker, "missing", LAST)
            continue
        try:
            text = folder.read(tracker, 0, TRACKER_BYTES_MAX).decode(errors="replace").strip()
        except (Unread, OSError):
            continue
        if text not in {one.rpartition("/")[2] for one in tags}:
            yield Remark(text or "what `latest` names", "missing")


def _of_megatron(folder: Folder) -> Iterator[Remark]:
    """`metadata.json` says in which files the rest lies: `common.pt` was one of them up to Megatron Core 0.18."""
    for place in sorted(path.removesuffix("metadata.json") for path in folder.sizes if path.endswith("metadata.json")):
        content = _json(folder, place + "metadata.json")
        if not isinstance(content, dict) or "sharded_backend" not in content:
            continue
        if content.get("common_backend") == "torch" and place + "common.pt" not in folder.sizes:
            yield Remark(place + "common.pt", "missing")
        if content["sharded_backend"] in ("torch_dist", "torch_dcp") and place + ".metadata" not in folder.sizes:
            yield Remark(place + ".metadata", "missing")


def _of_indexes(folder: Folder) -> Iterator[Remark]:
    for index in folder.sizes:
        if not re.search(r"\.(?:safetensors|bin)\.index\.json$", index):
            continue
        content = _json(folder, index)
        shards = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(shards, dict):
            if folder.sizes[index] > JSON_BYTES_MAX or folder.sizes[index] == LINK:
                yield Remark(index, UNREAD)
            elif folder.sizes[index]:
                yield Remark(index, "not an index of shards")
            continue
        place = index[: index.rfind("/") + 1]
        for shard in sorted({str(one) for one in shards.values()}):
            if place + shard not in folder.sizes:
                yield Remark(place + shard, "missing")


def _json(folder: Folder, path: str) -> object:
    """None: it cannot be read, or is none."""
    if folder.sizes[path] > JSON_BYTES_MAX:
        return None
    try:
        return json.loads(folder.read(path, 0, JSON_BYTES_MAX))
    except (OSError, Unread, ValueError, RecursionError):
        return None


def _of_contents(folder: Folder) -> Iterator[Remark]:
    for path, size in folder.sizes.items():
        suffix = re.search(r"\.(safetensors|pt|pth|ckpt|bin|pkl|json|distcp|ocdbt)$", path)
        if suffix is None or (not size and suffix[1] == "distcp"):
            continue
        if not size:
            yield Remark(path, "empty")
            continue
        look = _LOOKS.get(suffix[1], _of_torch)
        try:
            doubt = look(folder.read, path, size)
        except Unread as error:
            yield Remark(path, UNREAD, str(error))
            continue
        except OSError as error:
            doubt = f"it cannot be read, {error.strerror}"
        if doubt:
            yield Remark(path, "not whole", doubt)


def _of_safetensors(read: Callable[[str, int, int], bytes], path: str, size: int) -> str:
    try:
        length = safetensors_header_bytes(read(path, 0, 8), size)
        if length > JSON_BYTES_MAX:
            raise Unread(f"its header has more than {JSON_BYTES_MAX >> 20} MiB")
        safetensors_tensors(read(path, 8, length), size)
    except ValueError as error:
        return str(error)
    return ""


def _of_json(read: Callable[[str, int, int], bytes], path: str, size: int) -> str:
    """Only of those that frameworks write with a checkpoint. They are written from their beginning to their end."""
    if path.rpartition("/")[2] not in ("trainer_state.json", "metadata.json"):
        return ""
    return "" if read(path, max(size - 16, 0), 16).rstrip().endswith((b"}", b"]")) else "it is cut"


def _of_torch(read: Callable[[str, int, int], bytes], path: str, size: int) -> str:
    start = read(path, 0, 16)
    if not any(start):
        return "it begins with zeros"
    if start.startswith(b"PK"):
        return zip_doubt(start, read(path, max(size - ZIP_TAIL_BYTES, 0), ZIP_TAIL_BYTES))
    if start.startswith(b"\x80") or not path.endswith((".pt", ".pth", ".ckpt")):
        raise Unread("it is no zip file, so it does not say where it ends")
    return "it does not begin as torch.save writes"


_LOOKS = {"safetensors": _of_safetensors, "json": _of_json, "ocdbt": _of_json}
