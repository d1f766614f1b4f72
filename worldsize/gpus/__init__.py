"""Stand-ins for a rank's GPU where there is none: programs for GPUs run unmodified, emulated and on paper."""
