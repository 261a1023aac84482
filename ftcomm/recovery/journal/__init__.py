"""The journal of results of one worker: its content, and that of an earlier one; pure."""
