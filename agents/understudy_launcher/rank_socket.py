"""Place of the agent's socket for ranks and launchers.

The hook has the same rule in `understudy.identity`: it runs in the user's environment, where this package may not be
installed. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DEFAULT_SOCKET = "/run/understudy/agent.sock"
KEEPER_SOCKET = "/run/understudy-keeper/keeper.sock"


def socket_path(environment: Mapping[str, str], given: str | None) -> str:
    """`given`, or UNDERSTUDY_SOCKET, or the default. `%n` stands for the node's name, where one machine plays several
    nodes.
    """
    path = given or environment.get("UNDERSTUDY_SOCKET") or DEFAULT_SOCKET
    return path.replace("%n", environment.get("SLURMD_NODENAME", ""))


def folders_of_sockets(environment: Mapping[str, str]) -> list[str]:
    """Folders of this node that a container needs for its ranks: of the agent's socket and the keeper's, as far as they
    are there. The folders, and not the sockets, which are new files when a service restarts.
    """
    keeper = (environment.get("UNDERSTUDY_KEEPER_SOCKET") or KEEPER_SOCKET).replace(
        "%n", environment.get("SLURMD_NODENAME", "")
    )
    folders = [Path(path).parent for path in (socket_path(environment, None), keeper)]
    return [str(folder) for folder in dict.fromkeys(folders) if folder.is_dir()]
