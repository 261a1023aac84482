"""Works: what a collective of torch.distributed returns, made of the handles of ftcomm's calls."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import ftcomm


class HandleWork(dist.Work):
    """Some calls, begun in order, and what is done with their results."""

    def __init__(
        self,
        handles: Sequence[ftcomm.Handle[Any]],
        tensors: Any,
        finish: Callable[[], object] | None = None,
    ) -> None:
        """Of calls that have begun.

        Args:
            handles: of the calls; the last one is done last.
            tensors: the result, as a future of torch has it.
            finish: called once when all are done, by whoever waits or polls first or by the future.
        """
        super().__init__()
        self._handles, self._tensors, self._finish = handles, tensors, finish
        self._finishing = threading.Lock()
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the calls; their errors are raised as they are.

        Args:
            timeout: for all calls together; None and 0 are no limit, as in torch.

        Raises:
            TimeoutError: the calls are not done in that time.
        """
        end = time.monotonic() + timeout.total_seconds() if timeout else None
        for handle in self._handles:
            handle.wait(None if end is None else max(0.0, end - time.monotonic()))
        self._finish_once()
        return True

    def synchronize(self) -> None:
        """The same."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell whether the result is there, or an error: it is put in place now."""
        if not all(handle.done() for handle in self._handles):
            return False
        if self.exception() is None:
            self._finish_once()  # as who has polled reads the tensors without a wait
        return True

    def is_success(self) -> bool:
        """Tell whether the calls are done, without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The first error of the calls; waits for them."""
        errors = (handle.exception() for handle in self._handles)
        return next((error for error in errors if error is not None), None)

    def result(self) -> Any:
        """The tensors, when they are there."""
        self.wait()
        return self._tensors

    def get_future(self) -> Any:
        """A future of torch with the tensors.

        An error is raised inside of `then`.  If it were the future's own, DDP would read it as a
        list of tensors and crash.
        """
        if self._future is None:
            done: Any = torch.futures.Future()
            self._future = done.then(lambda _: self.result())
            if self._handles:
                self._handles[-1].add_done_callback(lambda _: done.set_result(None))
            else:
                done.set_result(None)
        return self._future

    def _finish_once(self) -> None:
        with self._finishing:
            if self._finish is not None:
                self._finish()
            self._finish = None
