"""Requests and responses of the OpenAI, vLLM and Anthropic APIs, for the server and for batch jobs."""
