"""Feedback on a submission for the student."""
