"""--device on a machine without a GPU: what is said, and what is done instead."""
import pathlib
import subprocess

import pytest

import harness as h

pytestmark = pytest.mark.skipif(pathlib.Path("/proc/driver/nvidia/version").exists(),
                                reason="this machine has an NVIDIA driver: tests/gpu/run.sh")
REASONS = ("no NVIDIA driver", "no CUDA")


@pytest.mark.parametrize("program", ["prefill_node", "decode_node"])
@pytest.mark.parametrize("flags", [[], ["--check"]])
def test_cuda_without_a_gpu_is_status_2_and_says_why(program, flags):
    command = [h.BUILD / program / program, "--model", h.MODEL, "--device", "cuda", *flags]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 2, (ran.stdout, ran.stderr)
    assert "device" in ran.stderr and "cuda" in ran.stderr, ran.stderr
    assert any(reason in ran.stderr for reason in REASONS), ran.stderr


@pytest.mark.parametrize("start", [h.prefill, h.decode])
@pytest.mark.parametrize("flags, reasons", [([], REASONS), (["--device", "cpu"], ["--device cpu"])])
def test_the_cpu_is_taken_and_the_reason_logged(start, flags, reasons):
    daemon = start(*flags)
    try:
        started = daemon.log_events("started")[0]
        assert started["device"] == "cpu"
        assert any(reason in started["device_reason"] for reason in reasons), started
        assert daemon.metrics()['akv_device_info{device="cpu",kind="cpu"}'] == 1
    finally:
        daemon.close()


def test_the_gpu_script_says_that_there_is_no_device():
    ran = subprocess.run([h.ROOT / "tests/gpu/run.sh", h.BUILD], capture_output=True, text=True,
                         timeout=60)
    assert ran.returncode == 77, (ran.stdout, ran.stderr)
    assert "no device" in ran.stderr
    assert any(reason in ran.stderr for reason in REASONS), ran.stderr
