"""The result of the demo as text, HTML page and picture."""
