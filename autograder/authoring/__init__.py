"""Building notebooks, programs and banks of known answers from scripts."""
