"""Changes of single lines of the product, in a process that runs it, and whether they would change anything."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, cast

HOOK = "_edited_{}"


@dataclass(frozen=True)
class Edit:
    """`old` and `new` are parts of the source of the function. One with an effect cannot be called twice."""

    function: Callable[..., Any]
    old: str
    new: str
    is_effect: bool = False

    @property
    def can_be_tried(self) -> bool:
        return not self.is_effect or " = " in self.old

    def before(self) -> FunctionType:
        return cast("FunctionType", self.function)

    def after(self) -> FunctionType:
        source = textwrap.dedent(inspect.getsource(self.function))
        if source.count(self.old) != 1:
            raise ValueError(f"{self.old!r} is {source.count(self.old)} times in {self.function.__qualname__}")
        return _made(source.replace(self.old, self.new), self.before())


def _made(source: str, like: FunctionType) -> FunctionType:
    """A decorator of `like`, such as that of a property, is left out."""
    found: dict[str, Any] = {}
    exec(compile(source[source.index("def ") :], like.__code__.co_filename, "exec"), like.__globals__, found)  # noqa: S102
    (made,) = found.values()
    return cast("FunctionType", made)


@contextmanager
def edited(*edits: Edit) -> Iterator[None]:
    """The code is changed in place: tables of steps and detectors refer to the same function."""
    with ExitStack() as stack:
        for one in edits:
            _replace(one.before(), one.after(), stack)
        yield


def _replace(function: FunctionType, by: FunctionType, stack: ExitStack) -> None:
    stack.callback(setattr, function, "__code__", function.__code__)
    function.__code__ = by.__code__


@contextmanager
def tried(edits: Iterable[tuple[str, Edit]]) -> Iterator[set[str]]:
    """The product runs as it is. Filled is the set of the names of those edits that would have changed an answer:
    without one, a story is the same with the edit. Of an effect only what an assignment would have set is compared.
    """
    differ: set[str] = set()
    with ExitStack() as stack:
        numbered = [(HOOK.format(number), name, one) for number, (name, one) in enumerate(edits)]
        made = [(_compared(one, hook) if one.is_effect else one).after() for hook, _, one in numbered]
        for (hook, name, one), after in zip(numbered, made, strict=True):
            function = one.before()
            if one.is_effect:
                function.__globals__[hook] = _either(name, differ)
                _replace(function, after, stack)
            else:
                was = FunctionType(
                    function.__code__,
                    function.__globals__,
                    function.__name__,
                    function.__defaults__,
                    function.__closure__,
                )
                was.__kwdefaults__ = function.__kwdefaults__
                function.__globals__[hook] = _both(was, after, name, differ)
                _replace(function, _made(f"def both(*args, **named): return {hook}(*args, **named)", function), stack)
            stack.callback(function.__globals__.pop, hook)
        yield differ


def _compared(edit: Edit, hook: str) -> Edit:
    left, _, old = edit.old.partition(" = ")
    return replace(edit, new=f"{left} = {hook}({old}, {edit.new.removeprefix(f'{left} = ')})")


def _either(name: str, differ: set[str]) -> Callable[[Any, Any], Any]:
    def either(was: Any, edited: Any) -> Any:
        if was != edited:
            differ.add(name)
        return was

    return either


def _both(was: FunctionType, edited: FunctionType, name: str, differ: set[str]) -> Callable[..., Any]:
    def both(*args: Any, **named: Any) -> Any:
        answer = _listed(was(*args, **named))
        if name not in differ and _listed(edited(*args, **named)) != answer:
            differ.add(name)
        return iter(answer) if isinstance(answer, list) and inspect.isgeneratorfunction(was) else answer

    return both


def _listed(answer: Any) -> Any:
    return [*answer] if isinstance(answer, Generator) else answer
