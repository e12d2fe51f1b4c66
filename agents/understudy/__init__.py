"""What training code imports: `from understudy import Monitor`.

Belongs here: step times, checkpoint notices, the last collective entered and the question where to go on, for the
node agent on this machine. Must not: any import outside the standard library, or of another package of this
repository: users get this directory alone, under the name `understudy`. Must not either: anything that could raise
into the training or hold it up. Where no agent is, nothing happens, and that is said once.

`lightning`, `huggingface` and `ddp` import their framework and are imported by its users only.
"""

from .identity import RELEASE
from .monitor import Monitor, RestorePoint

__version__ = RELEASE

__all__ = ["Monitor", "RestorePoint"]
