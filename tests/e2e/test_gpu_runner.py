"""The runner of the GPU checks, on a machine without GPUs."""

import os
import subprocess
import sys

from tests.gpu.checks import CHECKS


def test_without_gpus_every_check_is_skipped_with_the_reason_and_exit_code_0() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *lines, summary = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [["SKIP", check.name] for check in CHECKS]
    assert all("two GPUs are needed, 0 found" in line or "torch is not" in line for line in lines)
    assert summary.startswith(f"SUMMARY 0 PASS, 0 FAIL, {len(CHECKS)} SKIP; 0 GPUs")


def test_a_check_that_does_not_exist_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "comm_none"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "comm_none" in done.stderr
