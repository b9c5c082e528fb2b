"""What talks to the network for several stores."""
