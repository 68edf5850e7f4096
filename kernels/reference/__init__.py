"""What each op means, in plain torch. It is also the path that runs on CPU."""
