"""What is done with a server's tools: admitted, pinned, exposed, called, shaped. Values and rules, no effects."""
