"""All ranks of a job that a framework runs: from their start to their results, or their error."""

from typing import Any, Protocol

from ftcomm.errors import RankLostError
from ftcomm_tracker.embedding.launch_folder import HostEnd, WorkerReport
from ftcomm_tracker.embedding.outcomes import results_of

FORM_WITHIN_S = 120.0  # for slots to become free, and for an autoscaler's first machines
END_WITHIN_S = 5.0  # for ranks to report the error that all raise: more than twice its time


class Framework(Protocol):
    """The tasks of the ranks and the job's tracker, wherever a framework runs them."""

    def next_report(self, timeout: float | None) -> WorkerReport | None:
        """Report of a rank whose task has ended; None if none does in that many seconds.

        Raises:
            TrackerLostError: the framework is lost, and the tracker with it.
        """

    def status(self) -> dict[str, Any]:
        """State of the job, as `Tracker.status` has it."""

    def give_up(self, worker_id: str, reason: str) -> None:
        """End the job on all ranks, since nobody starts this worker again."""


def with_form_within(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a job whose workers take their slots from others."""
    return {"form_within": FORM_WITHIN_S, **settings}


def too_few(here: int, workers: int, form_within_s: float, advice: str) -> RankLostError:
    """Error of a job that has no slots for all ranks."""
    return RankLostError(
        f"{here} of {workers} ranks have started within {form_within_s:g} s (form_within)",
        remedy=advice,
    )


def gather(framework: Framework, workers: int, form_within_s: float, advice: str) -> list[Any]:
    """Wait for all ranks, and return their results in the order of the ranks.

    Args:
        framework: has started their tasks.
        workers: number of ranks.
        form_within_s: seconds until all must have joined.
        advice: remedy where they have not.

    Raises:
        RankLostError: not all have joined in time; or a rank is lost for good.
        Exception: what the first rank to fail has raised, with a note that names the rank.
        FtcommError: the job's own error otherwise.
    """
    reports: list[WorkerReport] = []
    timeout: float | None = form_within_s
    failed: WorkerReport | None = None
    while len(reports) < workers:
        report = framework.next_report(timeout)
        if report is not None:
            reports.append(report)
            if report.error and failed is None:
                failed, timeout = report, END_WITHIN_S
                framework.give_up(report.worker_id, _reason(report))
        elif failed is not None:
            break  # who computes learns of the end in its next call
        else:
            missing = framework.status()["missing"]
            if missing is not None:
                here = workers - len(missing["workers"]) - missing["unnamed"]
                raise too_few(here, workers, form_within_s, advice)
            timeout = None
    return results_of(_end_of(failed), 0, reports, workers)


def _reason(report: WorkerReport) -> str:
    return f"{report.error}: {report.text}" if report.is_own else report.text


def _end_of(failed: WorkerReport | None) -> HostEnd:
    """End of the job: well, by a rank's own error, or by one that all ranks raise."""
    if failed is None or failed.is_own:
        return HostEnd(failed is None, 0)
    return HostEnd(False, 0, failed.error, failed.text)
