"""The data plane: an OpenAI-compatible router on raw asyncio protocols. No Django, no pydantic, nothing above core."""
