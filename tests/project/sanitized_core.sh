#!/bin/sh
# Runs the tests of the core on builds of it that look for wrong addresses, undefined behaviour
# and races. Python and numpy are not built so: what they do alone is not seen, and leaks are not
# looked for. Under the sanitizer of threads nothing forks, and ranks in Python are left out, whose
# accesses it does not see; what a test writes into a segment in the place of a rank is ignored.
# Threads that hand on the interpreter's lock are ordered by it, and processes are not followed: so a
# slot that is published too early is not found.
set -eu
cd "$(dirname "$0")/../.."
cc=${CC:-cc}
ignored=$(mktemp)
trap 'rm "$ignored"; "$PYTHON" hatch_build.py' EXIT
echo "race:_struct.cpython" >"$ignored"

run() { # library, flags, what pytest is given
    CFLAGS="-g -O1 -fno-omit-frame-pointer $2" "$PYTHON" hatch_build.py
    library=$("$cc" -print-file-name="$1")
    shift 2
    LD_PRELOAD=$library FTCOMM_CORE=compiled PYTHONMALLOC=malloc \
        "$PYTHON" -m pytest -q -x -p no:cacheprovider tests/unit/core tests/unit/transport/test_frames.py "$@"
}

export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1
run libasan.so "-fsanitize=address,undefined -fno-sanitize-recover=all" -m ""
export TSAN_OPTIONS="halt_on_error=1:exitcode=66:suppressions=$ignored"
run libtsan.so -fsanitize=thread -m "not process" -k "not python and not mixed and not choice"
