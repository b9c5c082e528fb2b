"""The subscriptions to the channels of another library."""
