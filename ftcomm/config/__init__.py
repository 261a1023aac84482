"""Settings of a job and of a process, and what the platform offers."""
