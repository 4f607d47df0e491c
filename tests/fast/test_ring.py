"""A sequence split across processes gives what one process gives; a peer that is gone ends in an error, not a wait."""

import json
import re
import subprocess
import sys

import pytest
import torch

from lib.fast import ring
from scripts.repository import ROOT
from tests.fast.ring_worker import CASES

TOLERANCE = {"half": 4e-3, "double": 1e-13, "large scores": 2e-2}


def run(job, processes, folder, patience=120):
    """Start the processes and give what each of them printed."""
    store = folder / f"{job}_{processes}"
    command = [sys.executable, "-m", "tests.fast.ring_worker", job]
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen([*command, str(rank), str(processes), str(store)], **options) for rank in range(processes)
    ]
    try:
        printed = [process.communicate(timeout=patience) for process in started]
    finally:
        for process in started:
            process.kill()
    return [json.loads(out) if out else {"error": "nothing printed", "text": err} for out, err in printed]


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_ring_and_split_keys_equal_one_process(processes, tmp_path):
    for answer in run("equal_to_one_process", processes, tmp_path):
        assert "result" in answer, answer
        for name, found in answer["result"]["ring"].items():
            size = TOLERANCE.get(name, 1e-5)
            assert max(found["errors"]) < size, (name, found)
            assert found["dtype"] == str(CASES[name].get("dtype", torch.float32))
            assert found["untouched"], name
        assert list(answer["result"]["ring"]) == list(CASES)
        assert max(answer["result"]["split keys"].values()) < 1e-6, answer


def test_a_ring_of_some_of_the_processes(tmp_path):
    for answer in run("part_of_a_group", 3, tmp_path):
        assert "result" in answer, answer
        assert answer["result"] < 1e-5


@pytest.mark.parametrize(
    ("job", "error", "text"),
    [
        (
            "shapes_that_differ",
            "ValueError",
            r"must agree on query: process 0 has \[?\(\(1, 2, 8\).*process 1 .*\(1, 4, 8\)",
        ),
        ("options_that_differ", "ValueError", "must agree on causal: process 0 has False, process 1 True"),
        ("queries_that_differ", "ValueError", "must agree on query"),
        ("a_peer_that_is_gone_before", "RuntimeError", "2 processes of the ring could not reach the start within 5 s"),
        ("a_peer_that_goes_on_the_way", "RuntimeError", "could not exchange with their neighbours .* within 5 s"),
        ("a_peer_that_never_comes", "RuntimeError", "could not reach the start within 1 s: one is gone, late"),
    ],
)
def test_what_goes_wrong_is_said_and_does_not_hang(job, error, text, tmp_path):
    answers = run(job, 2, tmp_path, patience=60)
    assert answers[0]["error"] == error, answers
    assert re.search(text, answers[0]["text"]), answers
    if error == "ValueError":
        assert answers[1]["text"] == answers[0]["text"]


def test_without_a_process_group():
    x = torch.zeros(1, 4, 8)
    with pytest.raises(RuntimeError, match="there is no process group: start with torchrun"):
        ring.ring_attention(x, x, x)
    with pytest.raises(RuntimeError, match="there is no process group"):
        ring.split_keys_attention(x, x, x)


def test_bad_arguments_are_named():
    x = torch.zeros(1, 4, 8)
    with pytest.raises(
        ValueError, match=r"query and key must hold the same part .* even length .* got 4 queries and 2"
    ):
        ring.ring_attention(x, x[:, :2], x[:, :2])
    with pytest.raises(ValueError, match="got 3 queries and 3 keys"):
        ring.ring_attention(x[:, :3], x[:, :3], x[:, :3])
    with pytest.raises(ValueError, match="timeout must be positive seconds, got 0"):
        ring.ring_attention(x, x, x, timeout=0)
    with pytest.raises(TypeError, match=r"query must be a torch\.Tensor"):
        ring.ring_attention(x.numpy(), x, x)
    with pytest.raises(ValueError, match=r"length must be a multiple of 2 · 3 processes = 6, got 4"):
        ring.shard(x, 0, 3)
    with pytest.raises(ValueError, match="rank must be one of 0 to 1, got 2"):
        ring.shard(x, 2, 2)


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_shards_hold_each_position_once_and_share_the_work(processes):
    N = 24
    x = torch.arange(N).reshape(N, 1)
    parts = [ring.shard(x, rank, processes) for rank in range(processes)]
    assert torch.equal(ring.unshard(parts), x)
    assert len({int((part + 1).sum()) for part in parts}) == 1  # a causal query at i sees i + 1 keys: as many for all
    assert ring.unshard([part.expand(2, -1, -1) for part in parts]).shape == (2, N, 1)


def test_the_command_says_its_error_and_its_memory():
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "lib.fast.ring",
    ]
    options = ["--length", "64", "--heads", "2", "--size", "8", "--causal"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"2 processes, N = 64: at most \d+\.\d MiB in each", first)
    assert float(re.fullmatch(r"largest difference from one process: (\S+)", second)[1]) < 1e-6
