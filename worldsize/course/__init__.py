"""What single lessons need and the library does not: week 13's manifests, Slurm and Prometheus, the report's check."""
