"""The one background thread: tracker link, heartbeats, accepting links, serving the log."""
