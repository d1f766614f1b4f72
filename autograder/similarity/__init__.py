"""Submissions that resemble each other more than independent work does, and where."""
