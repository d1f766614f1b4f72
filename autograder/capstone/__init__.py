"""The capstone for instructors: the judge's cost model of a step, and the commands that check and run designs."""
