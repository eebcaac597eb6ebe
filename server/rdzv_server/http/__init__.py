"""The HTTP side: health and metrics on a port of their own, read-only.

`side` starts and stops it, `door` takes connections within limits, `pages` answers requests, `metrics`
renders numbers. Those four need the extra `http` (aiohttp, prometheus-client). `health`, `numbers` and
`buckets` need nothing: the server keeps them whether or not anybody can ask for them.
"""
