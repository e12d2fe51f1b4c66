"""The node's side of the Slurm hooks: the verdict that the Prolog reads, the records that hooks leave, the installer.

Belongs here: the hook scripts (`scripts/`) and the files between them and the agent. Must not: judging. The verdict is
the control plane's; the agent writes it to a file, the hooks read it and leave records.
"""
