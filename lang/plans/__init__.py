"""Plans of calls: what a program will do, found without running it."""
