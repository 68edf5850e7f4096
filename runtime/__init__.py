"""The processes that serve: protocol, frontend, scheduler, engine, models. Importing this package imports no torch."""
