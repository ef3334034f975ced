"""The audit beside changes: what is noted of logins, refusals and secrets, and the seals over all of it."""
