"""A class's submissions, judged and taken to nbgrader's gradebook."""
