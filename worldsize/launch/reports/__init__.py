"""Reports on why a run ended: the diagnosis and its text."""
