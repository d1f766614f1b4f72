"""Code that runs in the jail, next to student code or instead of it; nothing from there can be trusted."""
