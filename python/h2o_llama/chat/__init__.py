"""Completions and chats, in the shapes of OpenAI."""
