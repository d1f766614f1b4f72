"""What launcher and ranks have in common: the record of a run, and messages as they travel between them."""
