"""An interpreter that has the imports of a training program behind it, and waits to become a rank.

Run by a seat as `python FLAGS warm.py READY_FD GO_FD MODULES KIND TARGET ARGUMENTS…` with the *user's* Python, which
may be older (3.9) and need not have Understudy installed: this file needs only the standard library, and no other
module of this package.

It does not fork: the process that imported the modules is the one that runs the program. Libraries start threads when
they are imported, and threads do not survive a fork.
"""

import importlib
import json
import os
import runpy
import signal
import sys


def _nothing(_number: int, _frame: object) -> None:
    """A signal to the whole step, such as Slurm's warning of its end, does not concern a waiting interpreter."""


def _wait() -> tuple:  # type: ignore[type-arg]
    ready, go = int(sys.argv[1]), int(sys.argv[2])
    modules, kind, target, arguments = sys.argv[3], sys.argv[4], sys.argv[5], sys.argv[6:]
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, _nothing)
    # The program seems to be started by itself: imports are looked for in its own directory first.
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - the fewest imports
    if sys.path and os.path.abspath(sys.path[0]) == here:  # noqa: PTH100
        sys.path[0] = os.getcwd() if kind == "module" else os.path.dirname(os.path.realpath(target))  # noqa: PTH109, PTH120
    failed = []
    for module in filter(None, modules.split(",")):
        try:
            importlib.import_module(module)
        except BaseException as error:  # noqa: BLE001 - the program itself will fail because of it
            failed.append("%s (%s: %s)" % (module, type(error).__name__, error))  # noqa: UP031
    os.write(ready, (json.dumps({"failed": failed}) + "\n").encode())
    os.close(ready)
    with os.fdopen(go) as pipe:
        line = pipe.readline()
    if not line:
        os._exit(0)  # the seat is gone, or does not need this interpreter
    if not os.environ.get("UNDERSTUDY_CONTAINER"):  # there, the image's own variables stay
        os.environ.clear()
    given = json.loads(line)
    os.environ.update(given)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    return kind, target, arguments + json.loads(given.get("UNDERSTUDY_APPENDED_ARGUMENTS", "[]"))


def _run(kind: str, target: str, arguments: list) -> None:  # type: ignore[type-arg]
    sys.argv = [target, *arguments]
    if kind == "module":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
        return
    with open(target, "rb") as source:  # noqa: PTH123
        code = compile(source.read(), target, "exec")
    main = sys.modules["__main__"].__dict__
    builtins = main["__builtins__"]
    main.clear()
    main.update({"__name__": "__main__", "__builtins__": builtins, "__file__": target, "__cached__": None})
    main.update({"__doc__": None, "__loader__": None, "__package__": None, "__spec__": None})
    exec(code, main)  # noqa: S102 - the user's own program


if __name__ == "__main__":
    _run(*_wait())
