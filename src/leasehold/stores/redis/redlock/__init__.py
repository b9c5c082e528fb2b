"""Redlock: several independent Redis servers, of which a majority must agree, with proposed tokens."""
