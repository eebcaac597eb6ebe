"""The rdzv server: a pure state machine (`core`) in a thin asyncio shell (`shell`)."""
