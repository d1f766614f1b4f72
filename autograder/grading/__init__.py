"""Judging a class's submissions and entering the results into nbgrader's gradebook."""
