"""Names of jobs."""

import secrets
import time


def draw_job_id() -> str:
    """Return a name that no other job has: the time, and six random digits."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
