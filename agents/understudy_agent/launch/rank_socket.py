"""Where the agent's socket for ranks and launchers is.

The hook has the same rule in `understudy.identity`: it runs in the user's environment, where this package may not be
installed. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_SOCKET = "/run/understudy/agent.sock"


def socket_path(environment: Mapping[str, str], given: str | None) -> str:
    """`given`, or UNDERSTUDY_SOCKET, or the default. `%n` stands for the node's name, where one machine plays several
    nodes.
    """
    path = given or environment.get("UNDERSTUDY_SOCKET") or DEFAULT_SOCKET
    return path.replace("%n", environment.get("SLURMD_NODENAME", ""))
