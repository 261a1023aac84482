"""The libraries that `allreduce.py` measures, each with what starts it."""
