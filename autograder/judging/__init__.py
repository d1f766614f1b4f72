"""Hidden checks against a student's code in the sandbox, and what came of them."""
