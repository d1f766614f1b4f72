"""Hidden checks run against a student's code in the sandbox, and their results."""
