"""The tables that an instructor keeps at the root of a course: roster, submission times, extensions, regrades."""
