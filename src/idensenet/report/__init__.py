"""Numbers to pictures."""
