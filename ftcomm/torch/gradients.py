"""Gradients that are there at a checkpoint, as where they add up over several batches.

They are a rank's own: under ``no_sync`` each rank has others.  Zeros are kept without their bytes.
They still differ from no gradient: an optimizer with weight decay makes a step by them.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

import ftcomm
from ftcomm.torch.tensors import distributed_tensors

ZEROS = 0  # in place of a gradient whose bytes are all zero


def trained_in(parts: Iterable[Any]) -> list[torch.Tensor]:
    """Parameters of modules and optimizers among `parts`, each once, in their order."""
    found: dict[torch.Tensor, None] = {}
    for part in parts:
        if isinstance(part, torch.nn.Module):
            found.update(dict.fromkeys(part.parameters()))
        elif isinstance(part, torch.optim.Optimizer):
            found.update(dict.fromkeys(p for group in part.param_groups for p in group["params"]))
    return list(found)


def gradients_of(parameters: Iterable[torch.Tensor]) -> dict[int, Any]:
    """Gradients by the parameters' numbers; a parameter that has none is left out.

    Raises:
        TypeError: one is sparse.
    """
    numbered = enumerate(parameters)
    return {number: _content(p.grad) for number, p in numbered if p.grad is not None}


def restore_gradients(parameters: Iterable[torch.Tensor], gradients: Mapping[int, Any]) -> None:
    """The inverse of `gradients_of`: who had no gradient has none again."""
    for number, parameter in enumerate(parameters):
        parameter.grad = None
        if number in gradients:
            # Laid out as the parameter, in memory that the checkpoint does not use.
            parameter.grad = torch.zeros_like(parameter)
            if isinstance(gradients[number], torch.Tensor):
                _local(parameter.grad).copy_(gradients[number])


def check_unsharded(parts: Iterable[Any]) -> None:
    """Refuse modules of FSDP2 that hold gradients of whole parameters, which nobody can restore.

    Raises:
        ConfigError: one does, after ``set_requires_gradient_sync(False)``.
    """
    if any(True for part in parts for _ in _unsharded_in(part)):
        raise ftcomm.ConfigError(
            "FSDP2 adds up gradients that are not reduced yet, and a checkpoint cannot hold them",
            remedy="save behind a backward pass with set_requires_gradient_sync(True)",
        )


def _content(gradient: torch.Tensor) -> Any:
    values = _local(gradient.detach()).resolve_conj().resolve_neg()
    if values.layout is not torch.strided:
        raise TypeError(
            "a gradient is sparse, and a checkpoint holds dense ones; "
            "call optimizer.zero_grad() before save()"
        )
    # By its bytes, as a negative zero is another one.
    return values if values.reshape(-1).view(torch.uint8).any() else ZEROS


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, distributed_tensors()) else tensor


def _unsharded_in(part: Any) -> Iterator[torch.Tensor]:
    """Gradients that FSDP2 keeps beside those of its parameters."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None or not isinstance(part, torch.nn.Module):
        return
    for module in part.modules():
        if isinstance(module, fsdp.FSDPModule):
            state = module._get_fsdp_state()  # noqa: SLF001 - nothing else tells
            for group in getattr(state, "_fsdp_param_groups", ()):
                for parameter in group.fsdp_params:
                    whole = getattr(parameter, "_unsharded_param", None)
                    for each in (
                        parameter.unsharded_accumulated_grad,
                        getattr(whole, "grad", None),
                    ):
                        if each is not None:
                            yield each
