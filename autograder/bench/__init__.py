"""Measuring programs that were handed in, a class at a time; the table and the page about it."""
