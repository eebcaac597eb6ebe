"""The same on real GPUs: `python -m tests.gpu [CHECK …]`, or `make test-gpu`.

Needs two GPUs of one host, torch built for CUDA, and what server and client need (msgspec, click, structlog,
uvloop); no pytest, no network, no virtual environment. One line for each check:

    PASS|FAIL|SKIP name seconds detail

and a summary line; exit code 1 if one failed. Without two GPUs everything is skipped, with exit code 0.
Settings of the GPUs are left alone, and NVLink multicast stays off.
"""
