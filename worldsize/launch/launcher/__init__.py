"""The launcher's process: it starts ranks, hears them and ends them."""
