"""Takes a request through failures: asks the core, runs it, tells the core."""
