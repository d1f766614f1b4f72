"""What the site needs beside Sphinx, its theme and its reader of notebooks: an idea a file."""
