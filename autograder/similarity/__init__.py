"""Finding submissions that resemble each other more than independent work does, and showing where."""
