"""Work of a public method before its request exists and after the call is done."""
