"""Share of a step of Keras that is spent in ftcomm's calls, and the step without them.

    python benchmarks/keras_step.py
    python benchmarks/keras_step.py -n 2 --average weights --turns 3
    python benchmarks/keras_step.py --bind

Each rank trains the network of ``examples/keras_digits.py``: first with all ranks, then the same
number of steps by a plain ``fit`` of its own, while the others do so too.  A turn is a job of its
own; the first epoch of each fit, in which TensorFlow builds its graph, does not count.  Calls
include the wait for other ranks, and checkpoints.  With ``--bind`` each rank has a processor of its
own; else the kernel may run two ranks on one, while another is idle.  It needs keras and
scikit-learn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _report import table

BATCH = 32


def work(average: str, every: int, epochs: int, path: str, *, bind: bool) -> None:
    """Train as one rank; rank 0 writes the seconds of each epoch's steps, and of calls in it."""
    import keras  # noqa: PLC0415 - the other ranks' parent needs none
    import tensorflow as tf  # noqa: PLC0415 - likewise
    from sklearn.datasets import load_digits  # noqa: PLC0415 - likewise

    import ftcomm.keras  # noqa: PLC0415 - likewise

    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    from keras_digits import made  # noqa: PLC0415 - likewise

    tf.config.threading.set_intra_op_parallelism_threads(1)
    times: list[tuple[float, float]] = []
    with ftcomm.init() as comm:
        if bind and sys.platform == "linux":  # threads of TensorFlow begin later, and inherit it
            os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[comm.rank]})

        class Clock(keras.callbacks.Callback):  # type: ignore[misc] # whose types are not looked at
            """Notes the time of each epoch, and of calls in it."""

            def now(self) -> tuple[float, float]:
                kinds = comm.stats().kinds.values()
                return time.perf_counter(), sum(kind.seconds for kind in kinds)

            def on_epoch_begin(self, _epoch: int, _logs: Any = None) -> None:
                self.begun = self.now()

            def on_epoch_end(self, _epoch: int, _logs: Any = None) -> None:
                ended = self.now()
                times.append((ended[0] - self.begun[0], ended[1] - self.begun[1]))

        images, labels = load_digits(return_X_y=True)
        images = images.reshape(-1, 8, 8, 1) / 16.0
        training = ftcomm.keras.Training(
            images, labels, batch_size=BATCH, average=average, every=every, comm=comm
        )
        options = {"epochs": epochs, "shuffle": False, "verbose": 0}
        steps = len(training.data)
        made("cnn").fit(training.data, callbacks=[training, Clock()], **options)
        comm.barrier()
        rows = slice(comm.rank * steps * BATCH, (comm.rank + 1) * steps * BATCH)
        mine = images[rows], labels[rows]
        made("cnn").fit(*mine, batch_size=BATCH, callbacks=[Clock()], **options)
        comm.barrier()
    if comm.rank == 0:
        ours, plain = times[1:epochs], times[epochs + 1 :]
        facts = {
            "ms": 1e3 * statistics.median(each for each, _ in ours) / steps,
            "plain": 1e3 * statistics.median(each for each, _ in plain) / steps,
            "share": statistics.median(calls / each for each, calls in ours),
        }
        Path(path).write_text(json.dumps(facts), "utf-8")


def turn(ranks: int, average: str, every: int, epochs: int, *, bind: bool) -> dict[str, float]:
    """The figures of one job."""
    with tempfile.TemporaryDirectory(prefix="ftcomm-bench-") as folder:
        tracker = [sys.executable, "-m", "ftcomm_tracker", "run", "-n", str(ranks)]
        tracker += ["--max-restarts", "0", "--state-dir", f"{folder}/job", "--", sys.executable]
        words = [__file__, "--worker", average, str(every), str(epochs), f"{folder}/figures"]
        words += ["--bind"] * bind
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        subprocess.run([*tracker, *words], check=True, env=environ, stdout=sys.stderr)
        figures: dict[str, float] = json.loads(Path(folder, "figures").read_text("utf-8"))
        return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--ranks", type=int, default=2, help="[default: %(default)s]")
    parser.add_argument("--average", default="gradients,weights", help="[default: %(default)s]")
    parser.add_argument("--every", type=int, default=50, help="[default: %(default)s]")
    parser.add_argument("--epochs", type=int, default=20, help="of a turn [default: %(default)s]")
    parser.add_argument("--turns", type=int, default=3, help="[default: %(default)s]")
    parser.add_argument("--bind", action="store_true", help="a rank to a processor")
    arguments = parser.parse_args()
    lines = []
    for average in arguments.average.split(","):
        found = [
            turn(arguments.ranks, average, arguments.every, arguments.epochs, bind=arguments.bind)
            for _ in range(arguments.turns)
        ]
        ms, plain, share = (
            statistics.median(each[name] for each in found) for name in ("ms", "plain", "share")
        )
        lines.append([average, f"{ms:.2f}", f"{plain:.2f}", f"{100 * share:.1f} %"])
    print(table(["average", "ms a step", "of a plain fit", "share in calls"], lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(
            sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], bind="--bind" in sys.argv
        )
    else:
        main()
