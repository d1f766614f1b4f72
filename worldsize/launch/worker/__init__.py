"""The code that runs in a rank's process, or in a process that forks ranks."""
