"""What training code imports: `from agents.train import Monitor`.

Belongs here: step times, checkpoint notices and the question where to go on, for the node agent on this
machine. Must not: any import outside the standard library, anything that could raise into the training or
hold it up. Where no agent is, nothing happens, and that is said once.
"""

from agents.train.monitor import Monitor, RestorePoint

__all__ = ["Monitor", "RestorePoint"]
