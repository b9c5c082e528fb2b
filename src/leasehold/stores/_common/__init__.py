"""What several stores share: queues and cells as values, clock samples, waiting tickets, local hints."""
