"""`leasehold run` in real processes: exit codes, signals, and a command that never runs unprotected."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from shells import NOISE, SLACK, Shell, alive

from leasehold_lab.servers.redis.server import RedisServer
from support.patience import until

LOST, TAKEN, UNAVAILABLE, USAGE = 76, 75, 69, 64
WAITS = ("sh", "-c", "echo $$ >pid; exec sleep 60")


# --- exit codes and environment ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)]
)
def test_the_exit_code_of_the_command_is_passed_on(sqlite_shell: Shell, script: str, code: int) -> None:
    assert sqlite_shell.call("run", "job", "--", "sh", "-c", script) == (code, "", "")
    assert sqlite_shell.json("ls") == []


def test_output_and_input_are_the_command_s_own(sqlite_shell: Shell) -> None:
    process = sqlite_shell.start("run", "job", "cat", stdin=subprocess.PIPE)
    assert process.communicate("through\n", timeout=10) == ("through\n", "")


def test_options_may_precede_or_follow_the_name_and_the_command_keeps_its_own(sqlite_shell: Shell) -> None:
    assert sqlite_shell.call("run", "--lease", "5", "job", "--fair", "echo", "--fair", "-x")[1] == "--fair -x\n"
    assert sqlite_shell.call("run", "job", "--", "echo", "--", "x")[1] == "-- x\n"


def test_the_command_sees_name_token_url_and_namespace(shell: Shell) -> None:
    script = "env | grep ^LEASEHOLD_ | sort >env; echo done >>env; exec sleep 60"
    shell.start("run", "a b", "--namespace", shell.namespace + "!", "--", "sh", "-c", script)
    until(lambda: (shell.folder / "env").exists() and shell.file("env").endswith("done"))
    token = shell.json("show", "a b", "--namespace", shell.namespace + "!")["holders"][0]["token"]
    lines = shell.file("env").splitlines()[:-1]
    expected = {"NAME": "a b", "NAMESPACE": shell.namespace + "!", "TOKEN": str(token), "URL": shell.url}
    assert lines == [f"LEASEHOLD_{key}={value}" for key, value in expected.items()]


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (["no-such-command"], 127, "command not found"),
        (["./no/such"], 127, "command not found"),
        (["./plain"], 126, "permission denied"),
        (["./garbled"], 126, "Exec format error"),
        (["./orphan"], 127, "No such file"),
    ],
)
def test_a_command_that_cannot_run(sqlite_shell: Shell, command: list[str], code: int, says: str) -> None:
    (sqlite_shell.folder / "plain").write_text("")
    for name, text in (("garbled", "\x7f not a program"), ("orphan", "#!/no/such/interpreter\n")):
        (sqlite_shell.folder / name).write_text(text)
        (sqlite_shell.folder / name).chmod(0o755)
    ended, out, err = sqlite_shell.call("run", "job", "--", *command)
    assert (ended, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1
    assert sqlite_shell.json("ls") == []


MISTAKES = (
    ["job"],
    [],
    ["job", "--lease", "0", "true"],
    ["job", "--lease", "nan", "true"],
    ["job", "--timeout", "nan", "true"],
    ["job", "--grace", "-1", "true"],
    ["job", "--max-hold", "0", "true"],
    ["job", "--no-wait", "--timeout", "1", "true"],
    ["", "true"],
    ["n" * 513, "true"],
    ["job", "--meta", "m" * 1100, "true"],
    ["job", "--url", "nonsense:", "true"],
    ["job", "--url", "redis://h:port", "true"],
)


def test_a_mistake_is_one_line_and_its_own_code(sqlite_shell: Shell) -> None:
    for arguments, run in [(mistake, sqlite_shell.start("run", *mistake)) for mistake in MISTAKES]:
        out, err = run.communicate(timeout=20)
        assert (run.returncode, out, err.count("\n"), err[:11]) == (USAGE, "", 1, "leasehold: "), arguments


def test_a_store_that_is_down(sqlite_shell: Shell) -> None:
    code, _, err = sqlite_shell.call("run", "job", "--url", "redis://127.0.0.1:1", "touch", "ran")
    assert code == UNAVAILABLE
    assert err.count("\n") == 1
    assert not (sqlite_shell.folder / "ran").exists()


# --- contention ----------------------------------------------------------------------------------------------------


def test_two_runs_never_overlap(shell: Shell) -> None:
    (shell.folder / "count").write_text("0\n")
    script = "n=$(cat count); sleep 0.05; echo $((n + 1)) >count"
    runs = [shell.start("run", "job", "--", "sh", "-c", script) for _ in range(8)]
    assert [run.wait(30) for run in runs] == [0] * 8
    assert shell.file("count") == "8"


def test_without_the_lock_the_same_commands_overlap(sqlite_shell: Shell) -> None:
    (sqlite_shell.folder / "count").write_text("0\n")
    script = "n=$(cat count); sleep 0.5; echo $((n + 1)) >count"
    runs = [sqlite_shell.start("run", f"job{at}", "--", "sh", "-c", script) for at in range(4)]
    assert [run.wait(30) for run in runs] == [0] * 4
    assert sqlite_shell.file("count") != "4"


def test_a_lock_that_is_taken(shell: Shell) -> None:
    shell.start("run", "job", "--meta", "the first", "--", *WAITS)
    pid = int(shell.file("pid"))
    code, _, err = shell.call("run", "job", "--no-wait", "touch", "ran")
    assert code == TAKEN
    assert "the first" in err
    assert err.count("\n") == 1
    start = time.monotonic()
    assert shell.call("run", "job", "--timeout", "0.5", "-E", "9", "-q", "touch", "ran") == (9, "", "")
    assert time.monotonic() - start >= 0.5
    assert alive(pid)
    assert not (shell.folder / "ran").exists()


def test_a_waiting_run_that_gets_a_signal_leaves_the_queue(shell: Shell) -> None:
    shell.start("run", "job", "--", *WAITS)
    shell.file("pid")
    waiting = shell.start("run", "job", "touch", "ran")
    until(lambda: len(shell.json("show", "job")["waiters"]) == 1)
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(5) == 128 + signal.SIGTERM
    assert shell.json("show", "job")["waiters"] == []
    assert not (shell.folder / "ran").exists()


# --- signals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_reach_the_command(sqlite_shell: Shell, name: str) -> None:
    script = f"trap 'echo {name} >>got; exit 5' {name}; echo 1 >ready; while :; do sleep 0.05; done"
    run = sqlite_shell.start("run", "job", "--", "sh", "-c", script)
    sqlite_shell.file("ready")
    run.send_signal(signal.Signals[f"SIG{name}"])
    assert run.wait(5) == 5
    assert sqlite_shell.file("got") == name
    assert sqlite_shell.json("ls") == []


def test_the_lock_is_held_until_the_command_has_ended(shell: Shell) -> None:
    script = "trap 'until [ -e go ]; do sleep 0.05; done; exit 5' TERM; echo 1 >ready; while :; do sleep 0.05; done"
    run = shell.start("run", "job", "--", "sh", "-c", script)
    shell.file("ready")
    run.send_signal(signal.SIGTERM)
    assert shell.call("run", "job", "--no-wait", "true")[0] == TAKEN
    (shell.folder / "go").touch()
    assert run.wait(5) == 5
    assert shell.call("run", "job", "--no-wait", "true")[0] == 0


def test_signals_reach_the_descendants_of_the_command(sqlite_shell: Shell) -> None:
    run = sqlite_shell.start("run", "job", "--", "sh", "-c", "sleep 60 & echo $! >pid; wait; exit 1")
    pid = int(sqlite_shell.file("pid"))
    run.send_signal(signal.SIGTERM)
    assert run.wait(5) == 143
    until(lambda: not alive(pid))


def test_a_background_process_does_not_keep_the_lock(sqlite_shell: Shell) -> None:
    script = "sleep 60 >/dev/null 2>&1 & echo $! >pid"
    assert sqlite_shell.call("run", "job", "--", "sh", "-c", script, within=5)[0] == 0
    pid = int(sqlite_shell.file("pid"))
    try:
        assert alive(pid)
        assert sqlite_shell.json("ls") == []
    finally:
        os.kill(pid, signal.SIGKILL)


# --- the lock is lost ----------------------------------------------------------------------------------------------


def test_a_broken_lock_stops_the_command(shell: Shell) -> None:
    script = "trap 'echo told >told; exit 0' TERM; echo $$ >pid; while :; do sleep 0.05; done"
    run = shell.start("run", "job", "--lease", "1", "--", "sh", "-c", script)
    shell.file("pid")
    assert shell.call("break", "job", "--yes")[0] == 0
    start = time.monotonic()
    assert run.wait(5) == LOST
    assert time.monotonic() - start < 1 / 3 + SLACK
    assert shell.file("told") == "told"
    assert run.stderr is not None
    assert "lost" in run.stderr.read()


def test_a_command_that_will_not_stop_is_killed_after_the_grace(shell: Shell) -> None:
    script = "trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done"
    run = shell.start("run", "job", "--lease", "3", "--grace", "0.2", "--", "sh", "-c", script)
    pid = int(shell.file("pid"))
    assert shell.call("break", "job", "--yes")[0] == 0
    start = time.monotonic()
    assert run.wait(5) == LOST
    assert time.monotonic() - start < 1 + 0.2 + SLACK
    assert not alive(pid)


def test_a_store_that_fails_stops_the_command_before_the_lease_ends(tmp_path: Path) -> None:
    with RedisServer() as server:
        shell = Shell(server.url, tmp_path)
        try:
            script = "trap '' TERM; echo $$ >pid; while :; do sleep 0.05; done"
            run = shell.start("run", "job", "--lease", "1.5", "--", "sh", "-c", script)
            pid = int(shell.file("pid"))
            server.pause()
            assert until(lambda: not alive(pid)) < 1.5 + NOISE  # from the pause; the last renewal was sent before it
            server.resume()
            assert run.wait(10) == LOST
        finally:
            server.resume()
            shell.close()


def test_an_unconfirmed_release_is_reported_and_keeps_the_exit_code(tmp_path: Path) -> None:
    with RedisServer() as server:
        shell = Shell(server.url, tmp_path)
        try:
            run = shell.start(
                "run", "job", "--lease", "20", "--", "sh", "-c", "echo 1 >ready; read x; exit 3", stdin=-1
            )
            shell.file("ready")
            server.kill()
            _, err = run.communicate("\n", timeout=15)
            assert run.returncode == 3
            assert "did not confirm the release" in err
        finally:
            shell.close()


def test_a_cap_on_holding_stops_the_command(sqlite_shell: Shell) -> None:
    run = sqlite_shell.start("run", "job", "--lease", "0.6", "--max-hold", "0.3", "--", *WAITS)
    pid = int(sqlite_shell.file("pid"))
    _, err = run.communicate(timeout=5)
    assert run.returncode == LOST
    assert "about to be lost: --max-hold of 0.3 s is over; the command" in err
    assert not alive(pid)


def test_a_store_that_dies_before_the_cap_is_the_reason(tmp_path: Path) -> None:
    with RedisServer() as server:
        shell = Shell(server.url, tmp_path)
        try:
            run = shell.start("run", "job", "--lease", "3", "--max-hold", "1.5", "--", *WAITS)
            shell.file("pid")
            server.kill()
            _, err = run.communicate(timeout=15)
            assert run.returncode == LOST
            assert "about to be lost: the store confirms no renewal" in err
        finally:
            shell.close()


# --- we are killed or stopped --------------------------------------------------------------------------------------


@pytest.mark.parametrize("guarded", [True, False], ids=["with its guard", "after its guard"])
def test_a_run_that_is_killed_takes_the_command_with_it(shell: Shell, guarded: bool) -> None:
    lease = 1.5
    script = "trap '' TERM HUP; sleep 60 & echo $$ $! >pid; wait"
    run = shell.start("run", "job", "--lease", str(lease), "--", "sh", "-c", script)
    child, grandchild = map(int, shell.file("pid").split())
    if not guarded:
        guard = [int(one) for one in _children(run.pid) if int(one) != child]
        assert len(guard) == 1
        os.kill(guard[0], signal.SIGKILL)
    run.kill()
    until(lambda: not alive(child), 0.5)
    if guarded:
        until(lambda: not alive(grandchild), 0.5)
    elif alive(grandchild):
        os.kill(grandchild, signal.SIGKILL)
    start = time.monotonic()
    assert shell.call("run", "job", "true")[0] == 0
    assert time.monotonic() - start < (1.0 if "sqlite" in shell.url else lease + 0.25) + SLACK


def test_a_run_that_is_stopped_does_not_leave_the_command_unprotected(shell: Shell) -> None:
    run = shell.start("run", "job", "--lease", "1.5", "--", *WAITS)
    pid = int(shell.file("pid"))
    os.kill(run.pid, signal.SIGSTOP)
    assert until(lambda: not alive(pid), 5) < 1.5 + NOISE
    os.kill(run.pid, signal.SIGCONT)
    assert run.wait(5) == LOST


def test_a_run_ends_with_its_command_though_its_guard_was_stopped(sqlite_shell: Shell) -> None:
    run = sqlite_shell.start("run", "job", "--", "sh", "-c", "echo $$ >pid; read x; exit 5", stdin=subprocess.PIPE)
    command = sqlite_shell.file("pid").strip()
    (guard,) = [int(one) for one in _children(run.pid) if command in _children(int(one))]
    os.kill(guard, signal.SIGSTOP)
    run.communicate("\n", timeout=15)
    assert run.returncode == 5
    assert sqlite_shell.json("ls") == []


def test_a_run_leaves_no_process(sqlite_shell: Shell) -> None:
    run = sqlite_shell.start("run", "job", "--", "sh", "-c", "echo 1 >ready; read x", stdin=subprocess.PIPE)
    sqlite_shell.file("ready")
    family = [int(one) for one in _children(run.pid)]
    family += [int(one) for guard in family for one in _children(guard)]
    assert len(family) == 2
    run.communicate("\n", timeout=10)
    assert [pid for pid in family if alive(pid)] == []


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
