"""Patterns of distributed SGD on the public calls of a communicator; numpy is all that they need.

`import ftcomm` imports none of them.  docs/patterns.md says what each promises.
"""

from pathlib import Path

import ftcomm
from ftcomm.patterns.averaging import DiLoCo, LocalSGD, average_weights
from ftcomm.patterns.gossip import Gossip
from ftcomm.patterns.parameter_server import ParameterServer

__all__ = ["DiLoCo", "Gossip", "LocalSGD", "ParameterServer", "average_weights"]

ftcomm.passes_on(str(Path(__file__).parent))
