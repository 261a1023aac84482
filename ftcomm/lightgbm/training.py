"""A training of LightGBM that goes on after the death of any rank, to the bit.

Every rank has one Booster for the whole training, and keeps the text of the trees as its
checkpoint.  A restarted rank makes its Dataset and its Booster by the logged results of the others,
adds the trees of the checkpoint to both, and replays the rest of the round.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import lightgbm
import numpy as np
from lightgbm.basic import _LIB, _safe_call

import ftcomm
from ftcomm.lightgbm import parameters
from ftcomm.lightgbm.model_text import ModelText
from ftcomm.lightgbm.network import BoostingNetwork, Tape
from ftcomm.lightgbm.rank_dataset import RankDataset, agree

DIGEST_BYTES = 16


def train(
    params: Mapping[str, Any],
    make_dataset: Callable[[ftcomm.Communicator], Any],
    num_boost_round: int = 500,
) -> Any:
    """Train one model on the rows of all ranks, and survive the death of any of them.

    It is called once in ``with ftcomm.init()``, by all ranks, and makes its own `load_checkpoint`
    and a checkpoint each round; with bagging one each `bagging_freq` rounds.  It ends early if a
    round finds no split.

    Args:
        params: as for ``lightgbm.train``, the same on all ranks. `num_threads` is 1 without a
            value. `docs/boosting.md` lists those that are refused.
        make_dataset: called once with the communicator in each process of this rank. It returns
            the ``lightgbm.Dataset`` of this rank's rows, which nobody has constructed yet, of an
            array, a data frame or a sparse matrix. A restarted rank must make the same again.
        num_boost_round: rounds in all, those before a restart included.

    Returns:
        a ``lightgbm.Booster`` with the same text on all ranks. It has no training data.

    Raises:
        ConfigError: a parameter or a Dataset is refused, or those of two ranks differ.
        TypeError: an argument is of another type.
        ValueError: `num_boost_round` is no positive int; the checkpoint has been loaded before.
        RuntimeError: LightGBM has trained without the network, or the models of ranks differ.
        FtcommError: see the module `ftcomm.errors`.
        lightgbm.basic.LightGBMError: LightGBM has refused the data or a parameter.
    """
    comm = ftcomm.current()
    if comm.version >= 0:
        raise ValueError("train() loads the checkpoint itself: do not load it before")
    if type(num_boost_round) is not int or num_boost_round < 1:
        raise ValueError(f"num_boost_round is {num_boost_round!r}, must be an int above 0")
    values = parameters.checked(params, comm.world_size)
    network = BoostingNetwork(comm)
    with network.open():
        shard = RankDataset(make_dataset(comm), values)
        training = _Training(comm, network, values, shard)
        training.begin(num_boost_round)
        training.run(num_boost_round)
    return lightgbm.Booster(model_str=training.model.whole())


class _Training:
    """The training of one rank.

    Attributes:
        model: the trees so far.
    """

    def __init__(
        self,
        comm: ftcomm.Communicator,
        network: BoostingNetwork,
        values: parameters.Values,
        shard: RankDataset,
    ) -> None:
        self.model = ModelText()
        self._comm, self._network, self._values, self._shard = comm, network, values, shard
        self._tape = Tape()
        self._every = parameters.rounds_of_version(values)
        self._facts: dict[str, Any] = {}  # equal on all ranks, and over all attempts
        self._booster: Any = None

    def begin(self, rounds: int) -> None:
        """Make the Dataset and the Booster with all ranks, and load the newest checkpoint."""
        told = agree(self._comm, {**self._shard.facts(), "number of rounds": rounds})
        self._shard.construct()
        self._network.check()
        agree(self._comm, self._shard.names())
        self._check_calls(0)
        self._facts = {
            "rows of the ranks": [each["rows"] for each in told],
            "parameters": parameters.as_text(self._values),
        }
        self._booster = self._made(0)
        _, state = self._comm.load_checkpoint(default=self._state())
        for name, value in self._facts.items():
            if state[name] != value:
                raise ftcomm.ConfigError(
                    f"the {name} are {value}, and were {state[name]} at the checkpoint",
                    remedy="go on with the same, or begin a new job",
                )
        self.model.restore(state)
        if self.model.rounds:
            self._restore()

    def run(self, rounds: int) -> None:
        """Train until the model has `rounds`, with a checkpoint behind each version."""
        self._network.begin_training()
        fresh, added = True, b""
        while self.model.rounds < rounds:
            version, at = divmod(self.model.rounds, self._every)
            if at == 0 and not fresh and (changed := parameters.for_version(self._values, version)):
                self._booster.reset_parameter(changed)
            fresh, calls = False, self._network.calls
            is_finished = self._booster.update()
            self._network.check()
            self._check_calls(calls)
            added += self._keep_round()
            if is_finished:
                break
            if self.model.rounds % self._every == 0:
                self._compare(added)
                added = b""
                self._comm.checkpoint(self._state(), lazy=True)

    def _made(self, rounds: int) -> Any:
        """A Booster for the rounds behind `rounds`; the second one is made without the others."""
        seeds = parameters.for_version(self._values, rounds // self._every)
        with self._network.taped(self._tape):
            booster = lightgbm.Booster({**self._values, **seeds}, self._shard.dataset)
        self._network.check()
        return booster

    def _restore(self) -> None:
        """Bring the Dataset and a Booster to where the others are."""
        before = lightgbm.Booster(model_str=self.model.whole())
        self._shard.add_trees(before, self._values["num_threads"])
        self._booster = self._made(self.model.rounds)
        _safe_call(_LIB.LGBM_BoosterMerge(self._booster._handle, before._handle))  # noqa: SLF001 - no public call merges

    def _keep_round(self) -> bytes:
        """Add the trees of a round to the text; returns theirs, empty if there are none."""
        done = self.model.rounds
        if self._booster.num_trees() == done * self._booster.num_model_per_iteration():
            return b""
        return self.model.add(self._booster.model_to_string(1, done))

    def _state(self) -> dict[str, Any]:
        return {**self._facts, **self.model.state()}

    def _compare(self, trees: bytes) -> None:
        """See that all ranks have the same trees, which a lazy checkpoint does not compare."""
        digest = hashlib.blake2b(trees, digest_size=DIGEST_BYTES).digest()
        mine = np.frombuffer(digest, np.uint8)
        told = self._comm.allgather(mine)
        others = [rank for rank, each in enumerate(told) if each.tobytes() != digest]
        if others:
            raise RuntimeError(
                f"round {self.model.rounds} has given ranks {self._comm.rank} and {others[0]} "
                "different trees: their data or machines differ in something that is not compared"
            )

    def _check_calls(self, before: int) -> None:
        """See that LightGBM has used the network; else each rank trains a model of its own."""
        if self._comm.world_size > 1 and self._network.calls == before:
            raise RuntimeError(
                "LightGBM has made no collective: this rank would train a model of its own rows"
            )
