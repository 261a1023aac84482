"""Sockets and waiting: the data plane's I/O on the caller's thread."""
