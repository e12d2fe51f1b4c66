"""The node's side of the Slurm hooks: the verdict that the Prolog reads, the records that hooks leave, the installer.
The verdict is the control plane's: nothing here judges.
"""
