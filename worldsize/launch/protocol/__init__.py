"""The protocol between launcher and ranks: messages, values, calls and failures."""
