"""The asyncio process between clients and core: program sessions, HTTP, tokenizer. Imports no torch."""
