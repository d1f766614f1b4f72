"""What launcher and ranks have in common: messages, values, calls and failures as they travel between them."""
