"""What ``leasehold doctor`` reports about Redis, in each deployment."""
