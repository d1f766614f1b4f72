"""A standalone HTML page for pictures and tables."""

from __future__ import annotations

from html import escape


def page(title: str, body: str) -> str:
    """Make an HTML page that loads nothing: the title as its heading, then the body's markup as it is."""
    name = escape(title)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<style>body { font-family: sans-serif; max-width: 60em; margin: 2em auto }</style></head>\n"
        f"<body><h1>{name}</h1>\n{body}\n</body></html>\n"
    )
