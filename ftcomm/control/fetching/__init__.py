"""Requests of one rank to another in an epoch: the log, parts of calls, copies; also of spares."""
