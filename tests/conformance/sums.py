"""Sums of the processes that all tests killed and stopped, and the judgement of the sums.

The counts travel with the reports of the tests, so that they add up however the tests are run.
"""

import pytest

JUDGED = ("process and not smoke and not slow", "slow or not slow")  # by the markers of a run
LEAST_KILLS = 60  # of such a run of all tests; without them it says little
LEAST_STOPS = 20


class Sums:
    """Adds up what the tests report, and judges it if all of them were to run."""

    def __init__(self, config: pytest.Config) -> None:
        self.counts = {"kills": 0, "stops": 0}
        asked_for_all = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        narrowed = config.option.keyword or config.option.markexpr not in JUDGED
        self.judges = asked_for_all and not narrowed and not config.option.collectonly

    @property
    def too_few(self) -> bool:
        """True if a complete run has fewer faults than required."""
        few = self.counts["kills"] < LEAST_KILLS or self.counts["stops"] < LEAST_STOPS
        return self.judges and few

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name in self.counts:
                self.counts[name] += int(str(value))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK and self.too_few:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        kills, stops = self.counts["kills"], self.counts["stops"]
        if not (kills or stops or self.judges):
            return
        line = f"{kills} real processes were killed by SIGKILL and {stops} stopped by SIGSTOP"
        if self.too_few:
            line += f": too few, {LEAST_KILLS} and {LEAST_STOPS} are the least"
        terminalreporter.write_line(line, red=self.too_few)
