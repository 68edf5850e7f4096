"""The page for browsers and the data that it shows."""
