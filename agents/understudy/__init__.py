"""What training code imports: `from understudy import Monitor`.

Reports step times, checkpoints and the last collective to the node agent on this machine, and asks it for the restore
point. Imports the standard library only, and no other package of this repository, because users install this package
alone. Nothing here delays the training, and nothing raises but the question for the restore
point, where it is not known. Where no agent runs, nothing else happens, and one line is logged.

`lightning`, `huggingface`, `ddp`, `torch_save` and `dcp` import their framework; only users of that framework import
them.
"""

from .checksum import SummedFile
from .monitor import Monitor
from .release import RELEASE
from .restore import RestorePoint, RestorePointUnknownError

__version__ = RELEASE

__all__ = ["Monitor", "RestorePoint", "RestorePointUnknownError", "SummedFile"]
