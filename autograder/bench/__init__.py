"""Measuring the submitted programs of a class; the table and the page of results."""
