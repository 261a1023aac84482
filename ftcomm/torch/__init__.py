"""Training with torch on ftcomm: gradients averaged over ranks, and checkpoints of a whole script.

It needs torch, which `import ftcomm` alone never imports: the extra `torch`.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ftcomm
from ftcomm import init
from ftcomm.torch.requirement import has_backend, require_torch

__all__ = [
    "DDP",
    "BatchSampler",
    "DataLoader",
    "RestoredParts",
    "as_array",
    "as_tensor",
    "init",
    "init_process_group",
    "load",
    "save",
]
_HOMES = {
    "DDP": "ddp",
    "DataLoader": "data_loader",
    "BatchSampler": "sampler",
    "RestoredParts": "checkpoints",
    "as_array": "tensors",
    "as_tensor": "tensors",
    "init_process_group": "distributed.backend",
    "load": "checkpoints",
    "save": "checkpoints",
}

if TYPE_CHECKING:
    from ftcomm.torch.checkpoints import RestoredParts, load, save
    from ftcomm.torch.data_loader import DataLoader
    from ftcomm.torch.ddp import DDP
    from ftcomm.torch.distributed.backend import init_process_group
    from ftcomm.torch.sampler import BatchSampler
    from ftcomm.torch.tensors import as_array, as_tensor
else:  # or a type checker would take a name that is not there for Any

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'ftcomm.torch' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"ftcomm.torch.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return list(__all__)


def _prepare(torch: Any) -> None:
    # A message about a call names the script's line, not one of these or of torch's backward pass.
    for package in (__file__, torch.__file__):
        ftcomm.passes_on(str(Path(package).parent))
    importlib.import_module("ftcomm.torch.contents").register_types()
    if has_backend(torch):
        importlib.import_module("ftcomm.torch.distributed.backend").register()


_prepare(require_torch())
