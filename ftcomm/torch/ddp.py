"""Data-parallel training of a module."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

import ftcomm
from ftcomm.torch.broadcasting import broadcast_buffers, broadcast_tensors
from ftcomm.torch.gradient_bucket import BUCKET_BYTES
from ftcomm.torch.reducer import GradientReducer


class DDP(torch.nn.Module):
    """A module whose gradients are averaged over all ranks in each backward pass.

    Unlike torch's own, it calls the same collectives in every backward pass, so a restarted rank
    replays them.  Gradients are averaged in buckets, in reverse order of the parameters, while the
    backward pass goes on; they are views of the buckets.  ``zero_grad(set_to_none=False)`` leaves
    them there, so that nothing is copied.

    A parameter without a gradient counts as zeros, unless no rank has one: then it keeps none.
    A pass of backward on one rank is one on all.

    The averaging goes with the wrapper: when it has gone, or another one has wrapped the same
    parameters, gradients are the other's or the rank's own.

    Attributes:
        module: the user's.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        comm: ftcomm.Communicator | None = None,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        broadcast: bool = True,
        sync_buffers: bool = True,
    ) -> None:
        """Give all ranks the parameters and buffers of rank 0.

        Args:
            module: with all its parameters, of which those are averaged that require a gradient
                now. They may be frozen later, and trained again.
            comm: the communicator, default that of `ftcomm.current`.
            bucket_bytes: how large a bucket of several gradients may be.
            broadcast: False leaves parameters and buffers as they are on each rank: `load` follows,
                or all ranks have made them alike.
            sync_buffers: before each forward pass in training, take rank 0's buffers.

        Raises:
            TypeError: a parameter is on a device, or of a dtype that is not carried.
            ValueError: the module has no parameter to train.
        """
        super().__init__()
        self.module = module
        self.register_load_state_dict_pre_hook(_add_prefix)
        self._comm = comm or ftcomm.current()
        self._sync_buffers = sync_buffers
        self._averages = True
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trained:
            raise ValueError("the module has no parameter that requires a gradient")
        self._reducer = GradientReducer(self._comm, trained[::-1], bucket_bytes)
        self._averaged = {parameter for _, parameter in trained}
        self._others: list[torch.nn.Parameter] | None = None  # until the first forward pass
        if broadcast:
            broadcast_tensors(self._comm, list(module.parameters()))
            self.broadcast_buffers()

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The module's forward pass.

        Raises:
            ConfigError: a parameter requires a gradient and did not when the module was wrapped, or
                nobody averages all of the gradients any more.
        """
        if torch.is_grad_enabled():
            self._prepare()
        outputs = self.module(*inputs, **options)
        if torch.is_grad_enabled():
            self._reducer.watch(outputs)
        return outputs

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add gradients up on this rank alone, those of the forward passes inside.

        The first backward pass of one outside averages the sums.
        """
        before, self._averages = self._averages, False
        try:
            yield
        finally:
            self._averages = before

    def release(self) -> None:
        """Average nothing any more: from here on the module is a plain one of this rank.

        The same comes by itself with the last reference to the wrapper, and to what it returned.
        """
        self._reducer.remove()

    def broadcast_buffers(self) -> None:
        """Take rank 0's buffers, such as the running means of a batch norm; a collective."""
        broadcast_buffers(self._comm, self.module)

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        """The module's own, without a prefix."""
        return self.module.state_dict(*arguments, **options)

    def load_state_dict(self, state: Mapping[str, Any], *arguments: Any, **options: Any) -> Any:
        """The module's own."""
        return self.module.load_state_dict(state, *arguments, **options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles, which would have the job's connections.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "ftcomm.torch.DDP belongs to the job, so it cannot be copied or pickled; copy its "
            "module: copy.deepcopy(model.module), or save model.state_dict()"
        )

    def _prepare(self) -> None:
        self._reducer.begin_forward(averages=self._averages)
        self._check_trained()
        if self._reducer.is_removed and not self._reducer.is_succeeded:
            raise ftcomm.ConfigError(
                "this ftcomm.torch.DDP does not average gradients any more: it was released, or "
                "another one has wrapped some of its parameters since",
                remedy="wrap the module again, and call the new wrapper",
            )
        if self._averages and self._sync_buffers and self.module.training:
            self.broadcast_buffers()

    def _check_trained(self) -> None:
        """Refuse parameters that each rank would train by its own gradients."""
        if self._others is None:  # once, as a walk through the module costs
            self._others = [p for p in self.module.parameters() if p not in self._averaged]
        if any(parameter.requires_grad for parameter in self._others):
            named = self.module.named_parameters()
            names = [n for n, p in named if p.requires_grad and p not in self._averaged]
            raise ftcomm.ConfigError(
                "the module trains other parameters than when ftcomm.torch.DDP wrapped it: "
                + ", ".join(names[:3])
                + (" and others" if len(names) > 3 else ""),
                remedy="wrap it with all parameters that are trained at any time, and freeze them "
                "behind that, by requires_grad_(False)",
            )


def _add_prefix(_: Any, state: dict[str, Any], prefix: str, *_others: Any) -> None:
    """Find the names of `DDP.state_dict` where a module loads what it contains, one by one."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}module.{name[len(prefix) :]}"] = state.pop(name)
