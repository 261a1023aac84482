"""``ftcomm-tracker`` with other constants: fields of the settings that have no option.

python -m tests.helpers.constants '{"keep_by_all": 0}' serve -n 2
"""

import json
import sys
from dataclasses import replace
from typing import Any

from ftcomm.config.job_settings import JobSettings
from ftcomm_tracker import entry
from ftcomm_tracker.server import open_job

_given = open_job.job_settings


def _main(constants: dict[str, Any]) -> None:
    def changed(*given: Any, **more: Any) -> JobSettings:
        return replace(_given(*given, **more), **constants)

    open_job.job_settings = changed
    entry.main()


if __name__ == "__main__":
    _main(json.loads(sys.argv.pop(1)))
