"""Redis servers for tests, in each deployment."""
