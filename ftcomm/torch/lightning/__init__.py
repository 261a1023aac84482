"""Lightning on ftcomm: ``Trainer(strategy=FtcommStrategy())``.

The strategy averages gradients by `DDP`, and keeps Lightning's own checkpoint in the job's memory:
weights, optimizers, schedulers, loops, callbacks and the position in the data.  A restarted rank
goes on from there in `Trainer.fit`, by itself.
"""

from ftcomm.torch.lightning.strategy import FtcommStrategy

__all__ = ["FtcommStrategy"]
