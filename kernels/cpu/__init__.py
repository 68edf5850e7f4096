"""What torch leaves slow on a CPU, compiled by numba. Import its files where they are needed: they import numba."""
