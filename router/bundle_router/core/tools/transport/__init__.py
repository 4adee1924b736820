"""What is decided about tool servers, apart from talking to them: bounds, lifetimes, queues, leases, blocks. Pure."""
