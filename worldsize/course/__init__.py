"""What single lessons need beyond the library: week 13's manifests, Slurm and Prometheus, the report's check."""
