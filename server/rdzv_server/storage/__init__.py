"""Where the server's records live. `base` says what a store is; `sqlite` is the one on a local disk."""
