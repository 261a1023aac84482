"""``python -m ftcomm_chaos``: the same as ``ftcomm-chaos``."""

from ftcomm_chaos.entry import main

main()
