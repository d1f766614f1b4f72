"""Everything that check authors import through `autograder.checks`; it runs in the judge."""
