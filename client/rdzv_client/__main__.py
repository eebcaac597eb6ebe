"""`python -m rdzv_client` is `rdzv`."""

from rdzv_client.cli import main

if __name__ == "__main__":
    main()
