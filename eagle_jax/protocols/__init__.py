"""Requests and responses in the forms of OpenAI, vLLM and Anthropic: for the server, and for batch jobs."""
