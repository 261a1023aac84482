"""The parts of a training script that a checkpoint keeps: their states, and how to restore them."""

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from ftcomm.torch.ddp import DDP
from ftcomm.torch.tensors import distributed_tensors

# Keys of a module's state, for what is not in its state dict; no name begins so.
OTHER_BUFFERS = ".buffers"
FROZEN = ".frozen"
_RESTORES_SEEDS = np.lib.NumpyVersion(np.__version__) >= "2.0.0"


def state_of(part: Any) -> Any:
    """The state of a module, optimizer, scheduler, sampler or generator; else `part` itself."""
    if isinstance(part, DDP):
        return state_of(part.module)
    if isinstance(part, torch.nn.Module):
        more = {OTHER_BUFFERS: other_buffers(part), FROZEN: frozen_in(part)}
        return {**part.state_dict(), **{key: value for key, value in more.items() if value}}
    if hasattr(part, "state_dict"):
        return part.state_dict()
    if isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, np.random.Generator):
        return _generator_state(part)
    if isinstance(part, random.Random):
        return part.getstate()
    return part


def keeps_state(part: Any) -> bool:
    """Tell whether `part` is restored in place; a plain value is returned instead."""
    kinds = torch.Generator, np.random.Generator, random.Random
    return hasattr(part, "load_state_dict") or isinstance(part, kinds)


def restore(part: Any, state: Any) -> None:
    """Give `part` the state that `state_of` returned; shards stand for distributed tensors."""
    if isinstance(part, DDP):
        restore(part.module, state)
    elif isinstance(part, torch.Generator):
        part.set_state(state)
    elif isinstance(part, np.random.Generator):
        _restore_generator(part, state)
    elif isinstance(part, random.Random):
        part.setstate(state)
    elif isinstance(part, torch.nn.Module):
        named = {n: value for n, value in state.items() if n not in {OTHER_BUFFERS, FROZEN}}
        others = state.get(OTHER_BUFFERS, {})
        prepare_buffers(part, named, others)
        part.load_state_dict(_with_distributed(part, named))
        restore_buffers(part, others)
        restore_frozen(part, state.get(FROZEN, ()))
    else:
        state = _with_distributed(part, state)
        part.load_state_dict(state)
        if isinstance(part, torch.optim.Optimizer):
            restore_dtypes(part, state)


def other_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """Buffers that are not in the state dict: those of ``persistent=False``, and all that are None.

    A forward pass may change them like others, and a restarted rank 0 would give all ranks those
    that its script begins with.
    """
    found: dict[str, torch.Tensor | None] = {}
    for path, owner, name in _buffers_in(module):
        value = owner._buffers[name]  # noqa: SLF001 - nothing else tells
        others = getattr(owner, "_non_persistent_buffers_set", ())  # a script has none
        if value is None or (name in others and _is_plain(value)):
            found[path] = value
    return found


def prepare_buffers(
    module: torch.nn.Module, named: Mapping[str, Any], others: Mapping[str, torch.Tensor | None]
) -> None:
    """Have each buffer of the state dict `named` be there for ``load_state_dict``, and no other.

    A forward pass may make a buffer that was None, drop one, or make one of another shape or dtype.

    Args:
        module: with buffers as a script begins.
        named: a state dict of the module.
        others: what `other_buffers` returned beside it.
    """
    for path, owner, name in _buffers_in(module):
        now, value = owner._buffers[name], named.get(path)  # noqa: SLF001 - as above
        if path in others and others[path] is None:
            owner._buffers[name] = None  # noqa: SLF001 - as above
        elif _is_plain(value) and (now is None or (_is_plain(now) and not _is_alike(now, value))):
            owner._buffers[name] = torch.empty_like(value)  # noqa: SLF001 - as above


def restore_buffers(module: torch.nn.Module, buffers: Mapping[str, torch.Tensor | None]) -> None:
    """The inverse of `other_buffers`; one may be new, or have another shape than now."""
    for path, value in buffers.items():
        prefix, _, name = path.rpartition(".")
        owner = module.get_submodule(prefix)
        now = owner._buffers.get(name)  # noqa: SLF001 - as above
        if now is not None and value is not None and _is_alike(now, value):
            now.copy_(value)
        elif name in owner._buffers:  # noqa: SLF001 - as above
            owner._buffers[name] = value  # noqa: SLF001 - as above
        elif value is not None:
            owner.register_buffer(name, value, persistent=False)


def _buffers_in(module: torch.nn.Module) -> Iterator[tuple[str, Any, str]]:
    """For each buffer of `module`: the path to it, the module that has it, and its name there."""
    for prefix, owner in module.named_modules():
        for name in sorted(owner._buffers.keys()):  # noqa: SLF001 - `named_buffers` leaves out None
            yield (f"{prefix}.{name}" if prefix else name), owner, name


def _is_plain(value: Any) -> bool:
    is_lazy = isinstance(value, torch.nn.parameter.UninitializedTensorMixin)
    is_tensor = isinstance(value, torch.Tensor) and not is_lazy
    return is_tensor and not isinstance(value, distributed_tensors())


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one.shape, one.dtype) == (other.shape, other.dtype))


def frozen_in(module: torch.nn.Module) -> list[str]:
    """Names of the parameters that require no gradient now.

    A script may freeze them in a step that a restarted rank does not run again; it would train them
    alone, and all ranks would take its gradients.
    """
    return [name for name, parameter in module.named_parameters() if not parameter.requires_grad]


def restore_frozen(module: torch.nn.Module, names: Iterable[str]) -> None:
    """The inverse of `frozen_in`."""
    frozen = set(names)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)


def restore_dtypes(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Undo that ``load_state_dict`` has given values the dtypes of their parameters.

    `NAdam` keeps float32 beside any parameter, and so do others beside bfloat16.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, values in state.get("state", {}).items():
        if not isinstance(number, int):
            continue  # of no parameter, so it was left as it is
        loaded = optimizer.state[parameters[number]]
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.dtype != loaded[name].dtype:
                loaded[name] = value


def _generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """The bits, and the seeds of which `spawn` makes its next children; with numpy 1 the bits."""
    bits = generator.bit_generator
    seeds = getattr(bits.seed_seq, "state", None)  # those of another class are left as they are
    return {"bits": bits.state, "seeds": seeds if _RESTORES_SEEDS else None}


def _restore_generator(generator: np.random.Generator, state: Mapping[str, Any]) -> None:
    bits: Any = generator.bit_generator
    if state["seeds"] is not None:
        seeds, now = np.random.SeedSequence(**state["seeds"]), bits.seed_seq
        missing = seeds.n_children_spawned - now.n_children_spawned
        if np.array_equal(now.pool, seeds.pool) and missing >= 0:
            now.spawn(missing)
        else:
            bits.__setstate__((state["bits"], seeds))
    bits.state = state["bits"]


def _with_distributed(part: Any, state: Any) -> Any:
    """`state` with distributed tensors in place of shards, laid out as those of `part` are now."""
    if not distributed_tensors():
        return state
    if isinstance(part, torch.optim.Optimizer):
        return {**state, "state": _of_parameters(part, state["state"])}
    if not isinstance(part, torch.nn.Module):
        return state
    now = part.state_dict()
    return {name: _like(now.get(name), value) for name, value in state.items()}


def _of_parameters(optimizer: Any, states: Mapping[Any, Any]) -> dict[Any, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        number: {name: _like(parameters[number], value) for name, value in state.items()}
        if isinstance(number, int)
        else state  # of no parameter
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
