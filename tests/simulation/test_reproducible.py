"""A seed is a run, byte for byte, in every process and under every hash seed."""

import os
import subprocess
import sys

import pytest

HASH_SEEDS = ("0", "1", "4711")


@pytest.mark.smoke
@pytest.mark.process
def test_a_seed_is_one_run_in_every_process_and_under_every_hash_seed() -> None:
    """Sets of names come in another order under another hash seed: nothing may depend on it."""
    command = [sys.executable, "-m", "ftcomm_chaos", "sim", "--seeds", "10", "--digest"]
    path = os.pathsep.join(part for part in sys.path if part)
    runs = [
        subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        for seed in HASH_SEEDS
    ]
    digests = [run.stdout.partition("digest:")[2].split()[0] for run in runs]
    assert (len(digests[0]), set(digests)) == (64, {digests[0]})
