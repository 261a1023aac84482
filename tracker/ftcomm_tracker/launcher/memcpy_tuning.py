"""Above which size a worker's C library copies past the caches; a launcher says so beforehand.

A store first reads the line that it will overwrite, and displaces another from the cache; a
streaming store does neither, but what it has written is in no cache for who reads it next.  glibc
streams copies of three quarters of a processor's share of the last cache and more.  In a virtual
machine of few processors that is the cache of a host, of which many others use their share: 190 MB
were the limit where 100 MB were copied at 7 GB/s, and at 14 streamed.  A copy of 32 MiB and more
is faster even with a use of it right behind; one of 16 MiB is slower then, so there it ends.

The library reads the limit when a process starts, so it must be in the environment by then.
"""

import platform
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.cpu.x86_non_temporal_threshold"
STREAMED_BYTES = 32 << 20
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def with_streaming_copies(environment: dict[str, str], caches: Path = CACHES) -> dict[str, str]:
    """`environment`, with the limit where the library's own is above it and nobody has set one."""
    given = environment.get(VARIABLE, "")
    if (platform.system(), platform.machine()) != ("Linux", "x86_64") or TUNABLE in given:
        return environment
    if _share_of_last_cache(caches) * 3 // 4 <= STREAMED_BYTES:
        return environment
    limit = f"{TUNABLE}={STREAMED_BYTES:#x}"
    return {**environment, VARIABLE: f"{given}:{limit}" if given else limit}


def _share_of_last_cache(caches: Path) -> int:
    """Bytes of the last cache for each processor that shares it; 0 where that is not known."""
    shares = {}
    for cache in caches.glob("index*"):
        try:
            level, size, cpus = (
                (cache / name).read_text().strip() for name in ("level", "size", "shared_cpu_list")
            )
            shares[int(level)] = 1024 * int(size.removesuffix("K")) // _count(cpus)
        except (OSError, ValueError):
            continue
    return shares[max(shares)] if shares else 0


def _count(cpus: str) -> int:
    """Count the processors in a list such as ``0-3,8``."""
    count = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
