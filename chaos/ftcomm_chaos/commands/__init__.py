"""The commands of ``ftcomm-chaos``, one file each."""
