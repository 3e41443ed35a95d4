"""What people see of a run: the screens at several widths, the plain lines, what attach and detach say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.color import ColorType
from rich.console import Console as RichConsole
from rich.style import Style
from rich.text import Text

from dfl_mp.errors import ConfigError
from dfl_mp.messages import Progress, Status, WorkerLine
from launcher import attach, last_screen, live
from launcher.compose import REPO
from launcher.detach import farewell
from launcher.happenings import in_words, last
from launcher.last_screen import Ending, fold
from launcher.plain import Plain, line
from launcher.screen import frame
from launcher.snapshot import Phase, Snapshot, Worker, state_of
from launcher.summary import ending, last_lines
from launcher.tail import Follower, Scene, Tail, rate
from launcher.words import bar, buckets, ends, sparkline

WIDTHS = (60, 80, 140)
STARTED = {"time": 0.0, "event": "run_started", "resumed": False}
EVENTS = (
    STARTED,
    {"time": 1.0, "event": "transport_proved", "worker": "coordinator", "target": "target-0.1", "kind": "shm"},
    {"time": 2.0, "event": "generation", "generation": 2, "members": ["drafter-0.1"], "step": 7},
    {"time": 3.0, "event": "worker_exited", "worker": "drafter-1", "incarnation": 1, "code": None, "signal": "SIGKILL"},
    {"time": 4.0, "event": "worker_restarted", "worker": "drafter-1", "pid": 77, "incarnation": 2},
    {"time": 5.0, "event": "checkpoint_saved", "worker": "coordinator", "steps": 600, "folder": "/x"},
    {"time": 6.0, "event": "novelty_seen", "worker": "coordinator", "what": "a thing " * 30},
)


def status(state: str = "working", packs: int = 10, busy: float = 6.0, wait: float = 2.0) -> Status:
    return Status(state=state, since_s=0.0, step=5, busy_s=busy, wait_s=wait, packs=packs)  # type: ignore[arg-type]


def progress(names: list[str], step: int = 620) -> Progress:
    numbers = {"loss": 3.214, "accept_len_est": 1.84, "tokens_per_s": 3_600.0, "eta_s": 130.0, "generation": 2}
    slots = {"ready_slots": 3, "num_slots": 4, "computing_packs": 1, "held_packs": 5}
    workers = tuple(WorkerLine(worker=f"{name}.1", status=status()) for name in names)
    return Progress(step=step, num_steps=1500, **numbers, **slots, workers=workers)


def scene(phase: Phase = "train", drafters: int = 2, message: str = "", begun: bool = True) -> Scene:
    names = ["target-0", *(f"drafter-{i}" for i in range(drafters))]
    workers = [Worker(name=name, id=f"{name}.1", state="ready") for name in names]
    workers[-1] = Worker(name=names[-1], id=None, state="down")
    snapshot = Snapshot(
        time=1083.0, began=1000.0, pid=1, phase=phase, message=message,
        workers=() if phase in ("prepare", "evaluate") else tuple(workers),
        progress=progress(names) if begun else None,
    )  # fmt: skip
    found = rate(status(), None, 0.0)
    assert found is not None
    loss = tuple(23.0 / (1 + i / 40) for i in range(620)) if begun else ()
    accept = tuple(1 + i / 700 for i in range(620)) if begun else ()
    return Scene("runs/20261130-215656-quickstart", snapshot, {f"{n}.1": found for n in names}, loss, accept, EVENTS)


SCENES = {
    "prepare": scene("prepare", message="tokenising 1,000 of 4,000 conversations", begun=False),
    "start": scene(begun=False),
    "middle": scene(),
    "many": scene(drafters=40),
    "evaluate": scene("evaluate", message="evaluation: 3 of 24 prompts, tau 1.88 so far, 29 s"),
    "stopping": scene("stopping"),
    "over": scene("over"),
}


def shown(text: Text, width: int) -> list[str]:
    """The lines that a terminal of this width gets."""
    console = RichConsole(width=width, record=True, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(text)
    return console.export_text().rstrip("\n").splitlines()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("height", [24, 40])
def test_frame_fits(name: str, width: int, height: int) -> None:
    text = frame(SCENES[name], width, height)
    lines = text.split("\n", allow_blank=True)
    assert max(line.cell_len for line in lines) <= width
    assert len(lines) <= height
    assert len(shown(text, width)) == len(lines), "nothing is wrapped"


@pytest.mark.parametrize("width", WIDTHS)
def test_frame_tells_the_facts(width: int) -> None:
    middle = "\n".join(shown(frame(SCENES["middle"], width, 40), width))
    for fact in ("20261130-215656-quickstart", "1:23", "620/1500", "ETA 2:10", "3.214", "1.84", "3.6K", "■■■□ 3/4"):
        assert fact in middle
    for fact in ("targets 1", "drafters 5", "target-0        working", "drafter-1       down", "25%", "1.2", "from 23"):
        assert fact in middle
    for fact in ("generation 2", "drafter-1 killed by SIGKILL", "started again, process 77", "step 600 saved"):
        assert fact in middle
    assert "transport" not in middle
    assert middle.count("▁") >= 1 and "█" in middle
    assert "tokenising 1,000 of 4,000" in frame(SCENES["prepare"], width, 24).plain
    assert frame(SCENES["prepare"], width, 24).plain.count("━") == width // 4
    assert "3 of 24 prompts" in frame(SCENES["evaluate"], width, 24).plain
    assert "stopping" in frame(SCENES["stopping"], width, 24).plain
    many = frame(SCENES["many"], width, 24).plain
    assert "more: " in many and "1 down" in many and "step 600 saved" not in many.split("more")[0]


def test_only_the_terminals_own_colours() -> None:
    texts = [frame(s, 80, 40) for s in SCENES.values()] + [last_screen.screen(END, 80)]
    styles = [span.style for text in texts for span in text.spans]
    colours = [Style.parse(str(style)).color for style in styles]
    assert {c.type for c in colours if c} == {ColorType.STANDARD}
    assert not {c.name for c in colours if c} & {"black", "white", "yellow", "bright_black", "bright_white"}


RUNS = [["The", 1], [" quick brown", 2], [" fox\njumps", 3], [" over" * 40, 40], ["", 1], [" end", 1]]
END = Ending(
    "done: 1,500 steps",
    (("loss", "7.047 -> 3.045  mean of the first and of the last 5 % of the steps"), ("acceptance", "1 -> 2 " * 12)),
    (("export", "runs/20261130-215656-quickstart/checkpoints/step_00001500/and/much/deeper"),),
    (("train on your own conversations", 'make train ARGS="experiment=smollm2 data.path=chats.jsonl"'),),
    {1: 458, 2: 139, 3: 49, 8: 11},
    {"prompt": "Tell me\nof foxes. " * 20, "runs": RUNS},
)


@pytest.mark.parametrize("width", WIDTHS)
def test_last_screen(width: int) -> None:
    text = last_screen.screen(END, width)
    lines = text.split("\n", allow_blank=True)
    assert max(line.cell_len for line in lines) <= width
    assert len(shown(text, width)) == len(lines)
    plain = text.plain
    assert "7.047 → 3.045" in plain and "70%" in plain and "48 tokens in 6 forwards" in plain
    assert 'make train ARGS="experiment=smollm2 data.path=chats.jsonl"' in plain, "a command is never folded"
    row = next(line for line in lines if line.plain.startswith("answer"))
    first, second = [str(span.style) for span in row.spans if str(span.style) in last_screen.RUN_STYLES][:2]
    assert first != second
    wide = Ending("done", (), (), (), dict.fromkeys(range(1, 17), 3))
    assert "16" in last_screen.screen(wide, width).plain


def test_an_ending_without_evaluation() -> None:
    assert last_screen.screen(Ending("done", (), (), ()), 80).plain.startswith("done")


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="ab 漢\n", max_size=80), st.integers(min_value=2, max_value=20))
def test_fold_keeps_everything(text: str, width: int) -> None:
    lines = fold(Text(text), width)
    assert all(line.cell_len <= width for line in lines)
    assert "".join("".join(line.plain for line in lines).split()) == "".join(text.split())


def test_words() -> None:
    assert ends([10.0, 9.0, 2.0, 1.0]) == (10.0, 1.0) and ends([]) is None
    assert ends([float(i) for i in range(100)]) == (2.0, 97.0)
    assert buckets([1.0, 3.0, 5.0, 7.0, 9.0], 2) == [2.0, 7.0] and buckets([], 3) == []
    assert sparkline([1.0, 2.0, 3.0, 4.0], 10) == "▁▃▆█" and sparkline([], 5) == "" and sparkline([2.0], 5) == "▁"
    assert sparkline([1.0, 10.0, 100.0], 3, log=True) == "▁▅█"
    wild = sparkline([1e9, *range(1, 40)], 40)
    assert len(set(wild)) > 5 and wild[0] == "█", "one wild value does not flatten the rest"
    assert bar(0.5, 10) == ("━" * 5, "─" * 5) and bar(7.0, 3) == ("━" * 3, "")


def test_events_in_words() -> None:
    fallen = {"time": 0.0, "event": "worker_exited", "worker": "target-0", "incarnation": 3, "signal": None}
    assert in_words({**fallen, "code": 0}) is None
    assert in_words({**fallen, "code": 1}) == ("target-0 ended with exit code 1; see logs/target-0.3.log", "red")
    assert "no heartbeat" in in_words({**fallen, "code": None, "stuck": "no heartbeat for 60 s"})[0]  # type: ignore[index]
    assert in_words({"time": 0.0, "event": "eval_done", "tau": 2}) == ("eval done  tau 2", "")
    assert next(text for _, text, _ in last(EVENTS, 2)) == "checkpoint of step 600 saved"
    assert last(EVENTS, 0) == []


def test_tail_follows_appends_and_rewrites(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.new() == (False, [])
    path.write_text('{"a": 1}\n{"a": 2')
    assert tail.new() == (True, [{"a": 1}])
    with path.open("a") as file:
        file.write("}\n")
    assert tail.new() == (False, [{"a": 2}]) and tail.new() == (False, [])
    (tmp_path / "new").write_text('{"a": 9}\n')
    (tmp_path / "new").replace(path)
    assert tail.new() == (True, [{"a": 9}])


def test_follower_measures_between_snapshots(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"loss": 2.0, "accept_len_est": 1.5}\n{"loss": null}\n')
    lines = [progress(["target-0"]).model_copy(update={"workers": (WorkerLine(worker="target-0.1", status=s),)})
             for s in (status(packs=10), status(packs=50, busy=11.0, wait=7.0))]  # fmt: skip
    base = scene().snapshot
    first = follower.scene(base.model_copy(update={"progress": lines[0]}))
    assert (first.loss, first.accept) == ((2.0,), (1.5,))
    assert first.rates["target-0.1"].packs_per_s == 1.25, "since its start, while nothing else is known"
    second = follower.scene(base.model_copy(update={"progress": lines[1], "time": base.time + 10.0}))
    assert (second.rates["target-0.1"].packs_per_s, second.rates["target-0.1"].waiting) == (4.0, 0.5)


def test_snapshot_survives_the_disk(tmp_path: Path) -> None:
    assert Snapshot.read(tmp_path) is None
    snapshot = scene().snapshot
    snapshot.write(tmp_path)
    assert Snapshot.read(tmp_path) == snapshot
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
    assert [state_of(w, snapshot.progress) for w in snapshot.workers] == ["working", "working", "down"]
    assert [state_of(w, None) for w in snapshot.workers] == ["ready", "ready", "down"]


def test_plain_lines_only_when_something_changed(capsys: pytest.CaptureFixture[str]) -> None:
    plain, evaluating = Plain(every_s=0.0), SCENES["evaluate"].snapshot
    for message in ("", "3 of 24", "3 of 24", "4 of 24", "data: said again later", "error: said again later"):
        plain.show(evaluating.model_copy(update={"message": message}))
    assert capsys.readouterr().out == "3 of 24\n4 of 24\n"
    for step in (620, 620, 621):
        plain.show(scene().snapshot.model_copy(update={"progress": progress(["target-0"], step)}))
    assert [text.split("  ")[0] for text in capsys.readouterr().out.splitlines()] == ["step 620/1500", "step 621/1500"]
    slow = Plain(every_s=60.0)
    slow.show(evaluating)
    assert capsys.readouterr().out == ""
    assert (
        line(SCENES["start"].snapshot, None)[1] == "starting, 83 s  target-0 ready · drafter-0 ready · drafter-1 down"
    )


def test_a_screen_needs_a_terminal() -> None:
    main_end, terminal_end = os.openpty()
    with os.fdopen(main_end, "wb"), os.fdopen(terminal_end, "w", encoding="utf-8") as terminal:
        assert live.possible(terminal, {"TERM": "xterm"})
        assert not live.possible(terminal, {"TERM": "dumb"}) and not live.possible(terminal, {})
    with open(os.devnull, "w", encoding="utf-8") as pipe:
        assert not live.possible(pipe, {"TERM": "xterm"})


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """What a run that ended well leaves, as far as its ending reads it."""
    summary = {"steps": 20, "tokens": 100, "tokens_per_s": 5.0, "seconds": 9.0, "loss_first": 9.0, "loss_last": 1.5}
    summary |= {"tau_mean": 1.8, "tau_pooled": 1.7, "tau_untrained": 1.0, "tau_zero_features": 1.1}
    summary |= {"greedy_identical": 1.0, "repetition_rate": 0.05, "export": str(tmp_path / "export")}
    measured = {"prompts": 24, "histogram": {"1": 4, "3": 2}, "sample": {"prompt": "Say a b", "runs": RUNS}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "eval.json").write_text(json.dumps(measured))
    (tmp_path / "config.json").write_text(json.dumps({"data": {"path": "builtin:quickstart"}}))
    (tmp_path / "lock").touch()
    write_events(tmp_path, {"time": 9.0, "event": "run_stopped", "reason": "done"})
    return tmp_path


def write_events(run_dir: Path, *events: dict[str, object]) -> None:
    (run_dir / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in (STARTED, *events)))


def test_last_lines(finished: Path) -> None:
    text = "\n".join(last_lines(ending(finished)))
    for fact in ("done: 20 steps, 100 tokens, 9 s", "loss        9.000 -> 1.500", "acceptance  1.000 -> 1.800"):
        assert fact in text
    for fact in ("mean of 24 responses", "1.700 pooled; 1.100 with target features zeroed", "100.0% of the answers"):
        assert fact in text
    assert "answer      The| quick brown| fox jumps| over" in text
    assert "next        train for your own model: README.md" in text
    assert ending(finished).histogram == {1: 4, 3: 2}
    (finished / "config.json").write_text(json.dumps({"data": {"path": "chats.jsonl"}}))
    assert "your own model" not in "\n".join(last_lines(ending(finished)))


def test_attach_to_a_run_that_is_over(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert attach.main([str(finished)]) == 0
    assert "acceptance  1.000 -> 1.800" in capsys.readouterr().out
    write_events(
        finished, {"time": 9.0, "event": "run_stopped", "reason": "failed", "error": "drafter-0 died\nTraceback"}
    )
    assert attach.main([str(finished)]) == 1
    said = capsys.readouterr().out
    assert "run failed\ndrafter-0 died\nTraceback" in said and f"go on: make resume RUN={finished}" in said
    write_events(finished)
    assert attach.main([str(finished)]) == 1
    assert "gone without a word" in capsys.readouterr().out


def test_attach_names_what_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="RUN: there is no run in runs/ yet"):
        attach.main([])
    with pytest.raises(ConfigError, match="RUN: x is no run of dfl-mp"):
        attach.main(["x"])
    with pytest.raises(ConfigError, match="one run at most"):
        attach.main(["x", "y"])


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like a launcher."""
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", "launcher"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        yield process
        process.kill()


def test_running_is_told_by_the_launchers_process(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (tmp_path / "lock").write_text(f"{sleeper.pid}\n")
    assert attach.running(tmp_path)
    sleeper.kill()
    sleeper.wait()
    assert not attach.running(tmp_path)
    (tmp_path / "lock").write_text("")
    assert not attach.running(tmp_path)


def test_detached_output_moves_into_the_run(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_text("from before\n")
    read_end, write_end = os.pipe()
    script = (
        "import sys, pathlib; from launcher.detach import Report; report = Report(int(sys.argv[1]));"
        "print('on the terminal', flush=True); report.move_into(pathlib.Path(sys.argv[2]));"
        "print('in the log', flush=True); report.prepared()"
    )
    command = [sys.executable, "-c", script, str(write_end), str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, pass_fds=[write_end], capture_output=True, text=True, check=True)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        assert pipe.read() == f"run 12 {tmp_path}\nprepared\n"
    assert done.stdout == "on the terminal\n"
    assert (tmp_path / "console.log").read_text() == "from before\nin the log\n"
    assert f"watch       make attach RUN={tmp_path}" in farewell(tmp_path, 7)


def test_detached_wrong_input_is_told_where_it_was_typed() -> None:
    command = [sys.executable, "-m", "launcher", "train", "--detach", "optim.lr=-1"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: optim.lr: ") and done.stderr.count("error:") == 1
