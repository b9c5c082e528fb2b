"""The result of a run as text, Markdown, HTML and SVG."""
