"""Code of the judge, a process that is forked for one submission and never runs its code."""
