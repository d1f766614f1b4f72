"""The capstone for instructors: the judge's cost of a step, and the commands that check and run designs."""
