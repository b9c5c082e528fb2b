"""What several test files of the engine share."""
