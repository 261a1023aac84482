"""``python -m ftcomm_tracker``: the same as ``ftcomm-tracker``."""

from ftcomm_tracker.entry import main

main()
