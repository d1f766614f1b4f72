"""The launcher's process: it starts ranks, receives their messages and ends them."""
