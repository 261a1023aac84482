"""Records and sessions made by hand, for tests of what is made of them."""

from pathlib import Path
from typing import Any

from ftcomm_chaos.report.run_record import Delivery, ProcessRecord, RunRecord
from ftcomm_chaos.report.verdict import judge
from ftcomm_chaos.runner.job import JobSpec
from ftcomm_chaos.runner.session import RunRequest, RunSession


def kill(entry: int, at_s: float, worker: str, pid: int) -> Delivery:
    return Delivery(entry, "sigkill", at_s, (worker,), f"SIGKILL for {worker}", dies=(pid,))


def stop(entry: int, at_s: float, worker: str) -> Delivery:
    return Delivery(entry, "sigstop", at_s, (worker,), f"SIGSTOP for {worker}")


def process(who: str, pid: int, how: str = "", number: int = 1) -> ProcessRecord:
    return ProcessRecord(who, number, pid, 0.1, 9.0, how)


def incident(epoch: int, at_s: float, *victims: str, **more: Any) -> dict[str, Any]:
    ms = {"stop": 1.0, "replace": 2.0, "decide": 3.0, "fetch": 4.0, "link": 5.0, "total": 500.0}
    scenario = {"epoch": epoch, "at_s": at_s, "victims": list(victims), "suspects": [], "ms": ms}
    return {**scenario, "completed": True, "reason": "lost somebody", **more}


def run(name: str = "run 1 with faults", **more: Any) -> RunRecord:
    facts: dict[str, Any] = {"status": 0, "over_limit_s": None, "wall_s": 10.0, "formed_s": 1.0}
    return RunRecord(name, **{**facts, "result": "5af3", "folder": "/there", **more})


def killed_once(**more: Any) -> RunRecord:
    processes = [
        process("0", 10),
        process("1", 11, "was killed by SIGKILL"),
        process("1", 12, "", 2),
    ]
    facts = {"processes": processes, "deliveries": [kill(1, 2.0, "1", 11)]}
    return run(**{**facts, "incidents": [incident(2, 2.01, "1")], **more})


def session(*runs: RunRecord, command: tuple[str, ...] = ("python", "train.py")) -> RunSession:
    job = JobSpec("without faults", Path("/there"), 2, command, (), (), {})
    reference = run("without faults")
    return RunSession(RunRequest(job), reference, list(runs), judge(reference, runs))
