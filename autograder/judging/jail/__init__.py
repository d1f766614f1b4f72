"""What runs in the jail, beside student code or in its place; nothing that comes out of it can be trusted."""
