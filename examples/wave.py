"""Wave: layers of an LSTM on ranks; each step of time runs as soon as its input has come.

    python examples/wave.py                                            # alone: one layer
    ftcomm-tracker run -n 4 python examples/wave.py                 # four layers

Layer l computes time t when it has its own state of time t - 1 and the output of layer l - 1 at
time t.  So the layers work like a wave over time: while the last one is at t, the first is already
at t + 3.  Nothing waits in a loop: the callback of a message pushes the step that needs it to a
task engine, and the step sends its output on.

The layers are random and stay so; what is learned is a readout of the last one, by gradient steps
(an echo state network, Jaeger 2001).  A rank that is killed in a wave runs its layer again from the
messages that the layer before has kept.
"""

import argparse
import hashlib
import threading

import numpy as np
import numpy.typing as npt

import ftcomm

Vector = npt.NDArray[np.float64]


class Layer:
    """One LSTM layer with random weights."""

    def __init__(self, width: int, seed: tuple[int, ...]) -> None:
        rng = np.random.default_rng(seed)
        self.weights = rng.standard_normal((2 * width, 4 * width)) / np.sqrt(width)
        self.output, self.cell = np.zeros(width), np.zeros(width)

    def step(self, x: Vector) -> Vector:
        """One step of time: the gates of input and own output (Hochreiter and Schmidhuber)."""
        gates = np.concatenate((x, self.output)) @ self.weights
        keep, add, show, new = np.split(gates, 4)
        self.cell = _sigmoid(keep) * self.cell + _sigmoid(add) * np.tanh(new)
        self.output = _sigmoid(show) * np.tanh(self.cell)
        return self.output


def _sigmoid(x: Vector) -> Vector:
    y: Vector = 1.0 / (1.0 + np.exp(-x))
    return y


def series_of(wave: int, options: argparse.Namespace) -> Vector:
    """The input of a wave, alike on all ranks: noise that is repeated with a delay."""
    rng = np.random.default_rng((options.seed, wave))
    noise: Vector = rng.standard_normal((options.times, options.width))
    return noise


def run_wave(
    comm: ftcomm.Communicator, engine: ftcomm.TaskEngine, wave: int, options: argparse.Namespace
) -> list[Vector]:
    """One series through this rank's layer; return the layer's outputs."""
    layer = Layer(options.width, (options.seed, comm.rank, 1))
    order = engine.var("the layer's state")
    outputs: list[Vector] = []
    begun = threading.Semaphore(0)

    def step(x: Vector) -> None:
        outputs.append(layer.step(x).copy())
        if comm.rank + 1 < comm.world_size:
            comm.send(outputs[-1], comm.rank + 1, "output")

    def begin(x: Vector) -> None:
        engine.push(lambda: step(x), mutate=[order])

    def on_message(handle: "ftcomm.Handle[Vector]") -> None:
        begin(handle.result())
        begun.release()

    if comm.rank == 0:
        for x in series_of(wave, options):
            begin(x)
    else:
        handles = [comm.irecv(comm.rank - 1, "output") for _ in range(options.times)]
        for handle in handles:
            handle.add_done_callback(on_message)
        for handle in handles:
            handle.wait()  # raises what ends the job
            begun.acquire()
    engine.wait()
    return outputs


def learn(
    readout: Vector, outputs: list[Vector], wave: int, options: argparse.Namespace
) -> tuple[Vector, float]:
    """Gradient steps of the readout towards the input one step of time ago, and the error."""
    inputs, states = series_of(wave, options), np.array(outputs)
    wrong = states[1:] @ readout - inputs[:-1]
    return readout - options.rate / len(wrong) * states[1:].T @ wrong, float((wrong**2).mean())


def run(comm: ftcomm.Communicator, options: argparse.Namespace) -> str:
    """Run all waves from wherever the job stands; return a digest of the readout."""
    wave, readout = comm.load_checkpoint(default=np.zeros((options.width, options.width)))
    with comm.engine() as engine:
        while wave < options.waves:
            outputs = run_wave(comm, engine, wave, options)
            error = 0.0
            if comm.rank == comm.world_size - 1:
                readout, error = learn(readout, outputs, wave, options)
            readout = comm.broadcast(readout, root=comm.world_size - 1)
            error = comm.allreduce(error)
            wave = comm.checkpoint(readout)
            if comm.rank == 0:
                print(f"wave {wave}: error {error:.6f}")
    return hashlib.sha256(readout.tobytes()).hexdigest()


def main() -> None:
    """Run the waves, and let rank 0 say what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--waves", type=int, default=20, help="series to run (%(default)s)")
    parser.add_argument("--times", type=int, default=40, help="steps of a series (%(default)s)")
    parser.add_argument("--width", type=int, default=32, help="of each layer (%(default)s)")
    parser.add_argument("--rate", type=float, default=0.5, help="of learning (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of series and layers (%(default)s)")
    options = parser.parse_args()
    with ftcomm.init() as comm:
        digest = run(comm, options)
        if comm.rank == 0:
            print(f"model {digest}")


if __name__ == "__main__":
    main()
