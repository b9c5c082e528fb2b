"""Redlock: several independent Redis servers, of which a majority decides, with proposed tokens."""
