"""I/O that any process may use. No Django; imports nothing of the control plane but core."""
