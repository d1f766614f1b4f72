"""The code that runs in a rank's process."""
