"""The communicator that Lightning's strategy, the Trainer and the Accelerator find open."""

import ftcomm


def open_communicator() -> ftcomm.Communicator | None:
    """That of `ftcomm.current`; None where it finds none."""
    try:
        return ftcomm.current()
    except ftcomm.ConfigError:
        return None
