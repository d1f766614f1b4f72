"""What runs in a rank's process."""
