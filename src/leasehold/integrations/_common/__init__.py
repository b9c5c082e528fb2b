"""What several integrations share."""
