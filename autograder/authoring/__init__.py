"""From a script to a notebook, a program and a bank of known answers."""
