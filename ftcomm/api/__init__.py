"""What a public method does before a request exists and after it is done."""
