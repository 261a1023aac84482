"""The wire: messages, codec, frames, handshake. Pure."""
