"""The result of a run as figures and as an HTML page."""
