"""Collecting submissions from an exchange, from ngshare, and from the archives of an LMS."""
