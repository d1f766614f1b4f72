"""The protocol between launcher and ranks: the record of a run, and the messages."""
