"""Each kind of call, taken through failures."""
