"""The group's state machine; pure."""
