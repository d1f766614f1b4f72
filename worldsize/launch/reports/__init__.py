"""Why a run ended: the diagnosis and its text."""
