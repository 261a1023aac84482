"""A checkpoint's state to bytes and back."""
