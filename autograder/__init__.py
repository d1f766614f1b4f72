"""The course engine: build, sandbox, judge, grade and report. It knows no lab by name."""
