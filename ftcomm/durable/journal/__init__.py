"""Journals of results: files on each host, from which a later attempt goes on (rule R16)."""
