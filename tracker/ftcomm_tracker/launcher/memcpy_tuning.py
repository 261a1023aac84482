"""Limits from which a worker's C library copies in another way; a launcher sets them beforehand.

A store first reads the line that it will overwrite, and displaces another from the cache; a
streaming store does neither, but what it has written is in no cache for who reads it next.  glibc
streams copies of three quarters of a processor's share of the last cache and more.  In a virtual
machine of few processors that is the cache of a host, of which many others use their share: 190 MB
were the limit where 100 MB were copied at 7 GB/s, and at 14 streamed.  A copy of 32 MiB and more
is faster even with a use of it right behind; one of 16 MiB is slower then, so there it ends.

On processors of AMD glibc 2.36 copies by `rep movsb` from some KiB on.  Where the destination is 1
to 15 bytes behind the source, modulo 4096, on some machines 31, that takes ten times as long as a
loop over registers: 20 us for 64 KiB instead of 2.  A message in a buffer begins at any byte, and
the allocator's neighbours are 16 bytes apart.  The loop was nowhere slower, so it copies all.

The library reads both limits when a process starts, so they must be in the environment by then.
"""

import platform
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
STREAMS_FROM = "glibc.cpu.x86_non_temporal_threshold"
MOVSB_FROM = "glibc.cpu.x86_rep_movsb_threshold"
LARGE_BYTES = 32 << 20  # both limits: what is less goes through the loop, the rest is streamed
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
PROCESSORS = Path("/proc/cpuinfo")


def with_tuned_copies(
    environment: dict[str, str], caches: Path = CACHES, processors: Path = PROCESSORS
) -> dict[str, str]:
    """`environment`, with each limit that nobody has set and where the library has a worse one."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return environment
    given = environment.get(VARIABLE, "")
    wanted = []
    if _share_of_last_cache(caches) * 3 // 4 > LARGE_BYTES:
        wanted.append(STREAMS_FROM)
    if _is_of_amd(processors):
        wanted.append(MOVSB_FROM)
    limits = [f"{name}={LARGE_BYTES:#x}" for name in wanted if name not in given]
    if not limits:
        return environment
    return {**environment, VARIABLE: ":".join([given, *limits] if given else limits)}


def _is_of_amd(processors: Path) -> bool:
    try:
        return "AuthenticAMD" in processors.read_text(errors="replace")
    except OSError:
        return False


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
