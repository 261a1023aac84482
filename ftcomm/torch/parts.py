"""The parts of a training script that a checkpoint keeps: their states, and how to restore them."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ftcomm.torch.contents import distributed_tensors


def state_of(part: Any) -> Any:
    """The state of a module, optimizer, scheduler, sampler or generator; else `part` itself."""
    if hasattr(part, "state_dict"):
        return part.state_dict()
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    if isinstance(part, random.Random):
        return part.getstate()
    return part


def keeps_state(part: Any) -> bool:
    """Tell whether `part` is restored in place; a plain value is returned instead."""
    kinds = torch.Generator, np.random.Generator, random.Random
    return hasattr(part, "load_state_dict") or isinstance(part, kinds)


def restore(part: Any, state: Any) -> None:
    """Give `part` the state that `state_of` returned; shards stand for distributed tensors."""
    if isinstance(part, torch.Generator):
        part.set_state(state)
    elif isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    elif isinstance(part, random.Random):
        part.setstate(state)
    elif distributed_tensors():
        part.load_state_dict(_with_distributed(part, state))
    else:
        part.load_state_dict(state)


def _with_distributed(part: Any, state: Any) -> Any:
    """`state` with distributed tensors in place of shards, laid out as those of `part` are now."""
    if isinstance(part, torch.optim.Optimizer):
        return {**state, "state": _of_parameters(part, state["state"])}
    if not isinstance(part, torch.nn.Module):
        return state
    now = part.state_dict()
    return {name: _like(now.get(name), value) for name, value in state.items()}


def _of_parameters(optimizer: Any, states: Mapping[int, Any]) -> dict[int, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        number: {name: _like(parameters[number], value) for name, value in state.items()}
        for number, state in states.items()
    }


def _like(now: Any, value: Any) -> Any:
    """A shard as the distributed tensor that has it; what is no shard, as it is."""
    is_shard = isinstance(now, distributed_tensors()) and isinstance(value, torch.Tensor)
    if not is_shard or value.shape != now.to_local().shape:
        return value
    kind = type(now)
    return kind.from_local(
        value, now.device_mesh, now.placements, run_check=False, shape=now.shape,
        stride=now.stride(),
    )  # fmt: skip


def random_states() -> dict[str, Any]:
    """The states of the generators that every process has: of torch, numpy and Python."""
    return {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - scripts may use it
        "python": random.getstate(),
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """The inverse of `random_states`."""
    torch.set_rng_state(states["torch"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 - as above
    random.setstate(states["python"])
