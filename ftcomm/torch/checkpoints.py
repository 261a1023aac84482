"""Checkpoints of a whole training script in one call: `save` and `load`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

import ftcomm
from ftcomm.torch.broadcasting import broadcast_buffers
from ftcomm.torch.contents import to_content, to_tree
from ftcomm.torch.gradients import check_unsharded, gradients_of, restore_gradients, trained_in
from ftcomm.torch.parts import keeps_state, random_states, restore, restore_random_states, state_of


class RestoredParts(NamedTuple):
    """Result of `load`.

    Attributes:
        version: of the checkpoint; 0 on a fresh start.
        values: the parts that are plain values, by name; those of the arguments on a fresh start.
    """

    version: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ScriptState:
    """Content of the parts, as `Communicator.checkpoint` takes it.

    Attributes:
        shared: equal on all ranks.
        own: this rank's; None if there is nothing of its own.
    """

    shared: dict[str, Any]
    own: dict[str, Any] | None


def save(
    comm: ftcomm.Communicator, *, local: Mapping[str, Any] | None = None, rng: bool = True,
    gradients: bool = True, durable: bool = False, deadline: float | None = None, **parts: Any,
) -> int:  # fmt: skip
    """Checkpoint all `parts`; a collective, called with the same names on all ranks.

    Args:
        comm: the job's communicator.
        local: parts that differ between ranks, such as a generator of each rank's own.
        rng: keep this rank's states of the generators of torch, numpy and Python too.
        gradients: keep those that the parameters of modules and optimizers have now, on each rank
            its own. After ``zero_grad()`` there are none, and nothing is added. False leaves them
            out: right if ``zero_grad()`` comes before the next backward pass.
        durable: return when the job's store has it.
        deadline: as for `Communicator.checkpoint`.
        parts: what has a ``state_dict``, such as a module, optimizer, scheduler or sampler; a
            generator of torch, numpy or Python; or a value that a state may hold, such as the
            number of the step. Equal on all ranks, but for a module's buffers, which are taken
            from rank 0 first, and for shards of FSDP2, which are kept apart for each rank.

    Returns:
        the new version.

    Raises:
        CollectiveMismatchError: the parts of two ranks differ.
        ConfigError: FSDP2 holds gradients that it has not reduced.
        TypeError: a state holds what no checkpoint does; the message says where.
    """
    for part in parts.values():
        if isinstance(part, torch.nn.Module):  # a forward pass has changed them on each rank
            broadcast_buffers(comm, part)
    if gradients:
        check_unsharded([*parts.values(), *(local or {}).values()])
    state = _state_of(parts, local or {}, rng=rng, gradients=gradients)
    return comm.checkpoint(state.shared, state.own, durable=durable, deadline=deadline)


def load(
    comm: ftcomm.Communicator, *, local: Mapping[str, Any] | None = None, rng: bool = True,
    gradients: bool = True, deadline: float | None = None, **parts: Any,
) -> RestoredParts:  # fmt: skip
    """Restore all `parts` in place from the newest checkpoint; once, before the training loop.

    On a fresh start every rank gets rank 0's parts as they are, and keeps its own local ones: no
    other broadcast of the parameters is needed.

    Args:
        comm: the job's communicator.
        local: as for `save`.
        rng: restore this rank's states of the generators of torch, numpy and Python too.
        gradients: as for `save`.
        deadline: as for `Communicator.load_checkpoint`.
        parts: as for `save`, with the same names.

    Returns:
        the version, and the parts that are plain values.

    Raises:
        ConfigError: the checkpoint has other parts than these.
    """
    local = local or {}
    default = _state_of(parts, local, rng=rng, gradients=gradients)
    if default.own is None:
        version, shared = comm.load_checkpoint(default.shared, deadline=deadline)
        own: dict[str, Any] = {}
    else:
        version, shared, own = comm.load_checkpoint(default.shared, default.own, deadline=deadline)
    _check_names(shared, parts)
    _check_names(own.get("parts", {}), local)
    shards = own.get("shards", [])
    values = {
        **_restore(parts, to_tree(shared, shards)),
        **_restore(local, to_tree(own.get("parts", {}), shards)),
    }
    if "gradients" in own:
        restore_gradients(_trained(parts, local), own["gradients"])
    if "rng" in own:
        restore_random_states(own["rng"])
    return RestoredParts(version, values)


def _state_of(
    parts: Mapping[str, Any], local: Mapping[str, Any], *, rng: bool, gradients: bool
) -> ScriptState:
    shards: list[torch.Tensor] = []
    shared = to_content({name: state_of(part) for name, part in parts.items()}, shards)
    own: dict[str, Any] = {}
    if local:  # behind the others, whose numbers of shards all ranks have
        own["parts"] = to_content({name: state_of(part) for name, part in local.items()}, shards)
    if shards:
        own["shards"] = shards
    trained = _trained(parts, local) if gradients else []
    if trained:  # even where none has a gradient: ranks pass local states all or none
        own["gradients"] = gradients_of(trained)
    if rng:
        own["rng"] = random_states()
    return ScriptState(shared, own or None)


def _trained(parts: Mapping[str, Any], local: Mapping[str, Any]) -> list[torch.Tensor]:
    """The parameters in an order that is the same in `save` and `load`: that of the names."""
    return trained_in(each[name] for each in (parts, local) for name in sorted(each))


def _restore(parts: Mapping[str, Any], states: Mapping[str, Any]) -> dict[str, Any]:
    """Restore what keeps state, and return the rest."""
    values = {}
    for name, part in parts.items():
        if keeps_state(part):
            restore(part, states[name])
        else:
            values[name] = states[name]
    return values


def _check_names(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if found.keys() != wanted.keys():
        raise ftcomm.ConfigError(
            f"the checkpoint has the parts {_listed(found)}, and load() asks for {_listed(wanted)}",
            remedy="pass the same names to save() and load(), or begin a new job",
        )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names)) or "none"
