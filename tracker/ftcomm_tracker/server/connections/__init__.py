"""The connections of the tracker: accepted, authenticated, heard, answered, ended."""
