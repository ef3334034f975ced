"""Who may come in: accounts, sessions, second factors, identities of a provider, and tokens of the REST API."""
