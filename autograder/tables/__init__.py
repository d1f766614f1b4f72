"""The tables that an instructor keeps at the root of a course: the roster, and what was granted to whom."""
