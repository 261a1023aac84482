"""Refusals by name: parts of accelerate that an Accelerator of ftcomm lacks, and remedies."""

from typing import Any

import torch

import ftcomm

_BY_CHECKPOINTS = "leave it out: a restarted rank goes on from the job's checkpoint by itself"
_NO_OTHER_WAY = "leave it out, or use accelerate's own Accelerator without ftcomm"
_IN_THE_LOADER = "leave it out, and set the loader's batch_size to the rows of one rank"
_REFUSED_OPTIONS = {
    "deepspeed_plugin": _NO_OTHER_WAY,
    "deepspeed_plugins": _NO_OTHER_WAY,
    "fsdp_plugin": "use fully_shard with ftcomm.torch.save and load",
    "megatron_lm_plugin": _NO_OTHER_WAY,
    "torch_tp_plugin": _NO_OTHER_WAY,
    "parallelism_config": _NO_OTHER_WAY,
    "dynamo_backend": "compile the model before prepare()",
    "dynamo_plugin": "compile the model before prepare()",
    "split_batches": _IN_THE_LOADER,
    "dataloader_config": _IN_THE_LOADER,
    "rng_types": "leave it out: the order of rows is the same on all ranks",
    "kwargs_handlers": _NO_OTHER_WAY,
}
REFUSED_NAMES = {
    "save_state": _BY_CHECKPOINTS,
    "load_state": _BY_CHECKPOINTS,
    "skip_first_batches": _BY_CHECKPOINTS,
    "register_save_state_pre_hook": _BY_CHECKPOINTS,
    "register_load_state_pre_hook": _BY_CHECKPOINTS,
    "join_uneven_inputs": "leave it out: all ranks have the same number of batches",
    "lomo_backward": "call backward() and step the optimizer",
    "deepspeed_plugin": _NO_OTHER_WAY,
}


def check_options(options: dict[str, Any]) -> None:
    """Refuse what an Accelerator of ftcomm cannot do; raises ConfigError."""
    for name, remedy in _REFUSED_OPTIONS.items():
        if options.get(name):
            raise ftcomm.ConfigError(f"the Accelerator's {name} is not supported", remedy=remedy)
    precision = str(options.get("mixed_precision") or "no")
    if precision not in {"no", "bf16"}:
        raise ftcomm.ConfigError(
            f"mixed precision {precision} needs a GPU, and ftcomm trains on CPUs",
            remedy="use mixed_precision='bf16' or 'no'",
        )
    if torch.cuda.is_available() and not options.get("cpu"):
        raise ftcomm.ConfigError(
            "there is a GPU, and ftcomm carries tensors in host memory",
            remedy="pass cpu=True to train on the CPU",
        )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Refuse one that looks at each rank's own loss; raises ConfigError."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ftcomm.ConfigError(
            "LBFGS searches by each rank's own loss, so ranks would make other backward passes",
            remedy="use an optimizer that makes one step of one gradient, such as Adam",
        )


def check_inner(inner: Any) -> None:
    """Refuse what the environment has told accelerate; raises ConfigError."""
    kind = str(getattr(inner.distributed_type, "value", inner.distributed_type))
    if kind != "NO":
        raise ftcomm.ConfigError(
            f"accelerate has made a group of its own, {kind}",
            remedy="start the script by ftcomm-tracker run alone",
        )
