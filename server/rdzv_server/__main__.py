"""`python -m rdzv_server` is `rdzv-server`."""

from rdzv_server.cli import main

if __name__ == "__main__":
    main()
