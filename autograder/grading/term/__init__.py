"""The records of a term: who is enrolled, dates and extensions, late penalties, points by hand, regrades."""
