"""The scheduler: messages and results in, plans and tokens out. Pure, without device or sockets."""
