"""A worker's standard streams: one system call for each line instead of two or more.

The launcher starts workers with ``PYTHONUNBUFFERED``, so that it sees what a worker prints at once.
`print` then writes a text and its newline apart, and each write costs as much as all the rest.
"""

import io
import sys

from ftcomm.config.environment import wants_whole_lines


def write_whole_lines() -> None:
    """Buffer the standard streams by line, as a terminal's are, where the launcher asks for that.

    A newline or a carriage return passes the line on, so only a process that is killed loses
    what it has begun.  Streams that the script has replaced or set up itself stay as they are.
    """
    if wants_whole_lines():
        for stream in (sys.stdout, sys.stderr):
            if type(stream) is io.TextIOWrapper and not stream.closed and stream.write_through:
                stream.reconfigure(line_buffering=True, write_through=False)
