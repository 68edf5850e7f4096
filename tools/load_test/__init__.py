"""Load tests of servers that speak OpenAI's API: `ramiform bench serve`."""
