"""Recurrent layers of hybrid models: gated delta nets and Mamba2, with their states in numbered slots."""
