"""The bank's and the students' Markdown as HTML, MathML and Typst."""
