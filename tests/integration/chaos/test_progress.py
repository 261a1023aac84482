"""Progress of a session: one line on a terminal, a line a minute in a log."""

import pytest

from ftcomm_chaos.commands.run import LOG_EVERY_S, ProgressLine
from ftcomm_chaos.runner.output_parser import ParsedOutput
from ftcomm_chaos.runner.runner import progress_text

FORMED = "ftcomm: epoch 1 runs: frontier -1.0 (all ranks stand there)"
LOST = "ftcomm: epoch 2: lost worker 1: its connection ended (rank 1)"
RECOVERED = "ftcomm: recovered, epoch 2: lost worker 1: its connection ended (rank 1); 3095.0 ms"
CLOSED = "ftcomm: worker 1 has closed"
ALL_CLOSED = "ftcomm: all ranks have closed"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_terminal_has_one_line_of_progress_below_the_lines_that_stay(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    line = ProgressLine(is_terminal=True, width=lambda: 30)
    line.say("running without faults")
    line.show("1 s, running, epoch 1")
    line.show("2 s, running, epoch 1, and more than fits")
    line.say("  status 0 after 2.5 s")
    clear = b"\r\x1b[K"
    assert capfdbinary.readouterr().err == (
        b"ftcomm-chaos: running without faults\n"
        + clear
        + b"ftcomm-chaos:   1 s, running,"
        + clear
        + clear
        + b"ftcomm-chaos:   2 s, running,"
        + clear
        + b"ftcomm-chaos:   status 0 after 2.5 s\n"
    )


def test_a_log_has_a_line_of_progress_for_each_minute_without_another(
    capfd: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    line = ProgressLine(is_terminal=False, clock=clock)
    line.say("running without faults")
    for second in range(1, int(2.5 * LOG_EVERY_S)):
        clock.now = float(second)
        line.show(f"{second} s")
    line.say("  status 0 after 149.5 s")
    assert capfd.readouterr().err == (
        "ftcomm-chaos: running without faults\n"
        "ftcomm-chaos:   60 s\n"
        "ftcomm-chaos:   120 s\n"
        "ftcomm-chaos:   status 0 after 149.5 s\n"
    )


@pytest.mark.parametrize(
    ("lines", "delivered", "text"),
    [
        ([], 0, "7 s, waiting for all workers to join"),
        ([FORMED], 0, "7 s, running, epoch 1"),
        ([FORMED, LOST], 1, "7 s, 1 fault, recovering, epoch 2"),
        ([FORMED, LOST, RECOVERED], 3, "7 s, 3 faults, 1 recovery, running, epoch 2"),
        ([FORMED, CLOSED], 0, "7 s, 1 of 4 ranks have closed"),
        ([FORMED, CLOSED, ALL_CLOSED], 0, "7 s, all ranks have closed"),
    ],
)
def test_progress_says_what_was_broken_and_what_the_job_does(
    lines: list[str], delivered: int, text: str
) -> None:
    output = ParsedOutput()
    for line in lines:
        output.hear(line)
    assert progress_text(7.3, output, world_size=4, delivered=delivered) == text
