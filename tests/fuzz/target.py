"""One decoder under a coverage-guided fuzzer.

`python -m tests.fuzz.target NAME PROGRAM ARGUMENTS...`: the arguments are libFuzzer's, and PROGRAM
takes them too, for a merge starts it again. Ends with status 77 and the input in a file if anything
is found.
"""

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["ftcomm", "ftcomm_tracker", "ftcomm_chaos"]):
    from tests.fuzz.decoders import TABLE


def main() -> None:
    """Fuzz until the arguments' time is over."""
    name, program, *arguments = sys.argv[1:]
    (decoder,) = (row for row in TABLE if row.name == name)

    def feed(raw: bytes) -> None:
        with contextlib.suppress(*decoder.allowed):
            decoder.feed(raw)

    atheris.Setup([program, f"-max_len={decoder.limit}", *arguments], feed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
