"""Accelerate on ftcomm: ``from ftcomm.torch.accelerate import Accelerator``.

Each rank runs the script on its share of the rows; gradients are averaged by `DDP`.  All that was
prepared is kept in the job's memory, within an epoch and at its end.  A restarted rank runs the
script from its begin: its passes over the training data are empty up to that of the checkpoint.
"""

from ftcomm.torch.accelerate.accelerator import Accelerator

__all__ = ["Accelerator"]
