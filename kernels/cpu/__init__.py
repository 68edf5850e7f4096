"""Device ops of CPUs: loops compiled by numba. Modules here import numba, so import them only where they are needed."""
