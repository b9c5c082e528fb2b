"""What all stores on SQL databases share."""
