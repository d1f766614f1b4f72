"""What a run shows while it lasts."""
