"""Makes a Linux interpreter look like another system's to our own code.

    python tests/integration/platforms/pretend.py darwin script.py [argument ...]
    python tests/integration/platforms/pretend.py darwin -m module [argument ...]

Everything that we import is imported once under the true name, so that numpy, trio and the
standard library are what they are; then our own modules are forgotten, and what the other system
lacks is taken away before they are imported again.
"""

import importlib
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import types

import trio

OPTIONAL = (  # imported by nobody inside; they need what may be missing
    "ftcomm.torch", "ftcomm.lightgbm", "ftcomm.xgboost", "ftcomm.keras", "ftcomm.dask",
    "ftcomm.ray", "ftcomm_tracker.embedding.dask_gang", "ftcomm_tracker.embedding.ray_gang",
)  # fmt: skip
PACKAGES = ("ftcomm", "ftcomm_tracker", "ftcomm_chaos")

NOT_ON_DARWIN = {
    os: """EFD_CLOEXEC EFD_NONBLOCK EFD_SEMAPHORE copy_file_range eventfd eventfd_read eventfd_write
        getrandom memfd_create pidfd_open posix_fadvise posix_fallocate sched_getaffinity
        sched_setaffinity sched_yield splice waitid""",
    select: "epoll EPOLLIN EPOLLOUT EPOLLET EPOLLERR EPOLLHUP",
    signal: "SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: """AF_NETLINK AF_PACKET AF_VSOCK MSG_NOSIGNAL SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED
        TCP_QUICKACK TCP_USER_TIMEOUT""",
}
NOT_ON_WIN32 = {
    os: NOT_ON_DARWIN[os]
    + """ O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK P_PID WEXITED WNOHANG WNOWAIT chown fchmod
        fchown fork forkpty getegid geteuid getgid getloadavg getpgid getpgrp getuid killpg mkfifo
        nice openpty pread pwrite register_at_fork sendfile setpgid setsid sysconf uname wait3 wait4
        waitpid WIFEXITED WIFSIGNALED""",
    select: NOT_ON_DARWIN[select] + " POLLERR POLLHUP POLLIN POLLNVAL POLLOUT poll",
    signal: NOT_ON_DARWIN[signal]
    + """ ITIMER_REAL SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1
        SIGUSR2 alarm pthread_kill pthread_sigmask setitimer sigwait""",
    socket: NOT_ON_DARWIN[socket] + " AF_UNIX MSG_DONTWAIT SCM_RIGHTS SO_REUSEPORT",
    trio.lowlevel: "FdStream",
}
MODULES_NOT_ON_WIN32 = "fcntl grp posix pty pwd resource syslog termios tty"
MISSING = {"darwin": NOT_ON_DARWIN, "win32": NOT_ON_WIN32}


def import_everything() -> list[str]:
    """Import every module of ours, and return their names."""
    names = []
    for package in map(importlib.import_module, PACKAGES):
        names.append(package.__name__)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__") and not found.name.startswith(OPTIONAL):
                importlib.import_module(found.name)
                names.append(found.name)
    return names


def pretend(platform: str) -> None:
    """From here on our modules find themselves on `platform`."""
    for name in import_everything():
        sys.modules.pop(name)
    polls = sys.modules["trio._core._io_epoll"]
    vars(polls)["select"] = types.SimpleNamespace(**vars(select))  # the loop goes on as it is
    for module, names in MISSING[platform].items():
        for name in names.split():
            vars(module).pop(name, None)  # some are not on every Linux either
    if platform == "win32":
        sys.modules.update(dict.fromkeys(MODULES_NOT_ON_WIN32.split()))
    sys.platform = platform


def main() -> None:
    """Pretend, and run what the rest of the command line names, as Python itself would."""
    platform, *command = sys.argv[1:]
    pretend(platform)
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main()
