"""Taking a job up from what its workers know, where the journal is lost (rule R19)."""
