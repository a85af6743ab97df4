"""What `tools.crash` records of a program: all ways to change a folder, in order, with syncs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.crashing import (
    NEEDS_COMPILER,
    own_cache,  # noqa: F401 - a fixture
    program,
)

from logweir.recovery.faults.surviving import answered, settled
from logweir.tools.crash.keeping import CrashTest, Tally
from logweir.tools.crash.powercut import everything_lost, record
from logweir.tools.crash.programs import Commands
from logweir.tools.crash.recording import Operation
from logweir.tools.crash.replay import Replay

pytestmark = [pytest.mark.kill, NEEDS_COMPILER]


def recorded(folder: Path, text: str, *, acks: str = "") -> list[Operation]:
    """The operations of a program; they lead to what is in its folder, else this raises."""
    commands = Commands(program(folder / "run.py", text, "{dir}"), "true {dir}", acks)
    (folder / "work").mkdir(exist_ok=True)
    return record(CrashTest(commands, folder / "work", folder), Tally("power cut"))


EVERYTHING = """
import os, shutil, subprocess, sys, tempfile, threading
os.chdir(sys.argv[1])
here = os.open(".", os.O_RDONLY)
one = os.open("one", os.O_CREAT | os.O_RDWR)
os.write(one, b"a" * 5000)
os.pwrite(one, b"b" * 100, 4090)
os.writev(one, [b"c" * 10, b"d" * 20])
os.pwritev(one, [b"e", b"f"], 6000)
os.ftruncate(one, 6001)
os.posix_fallocate(one, 0, 7000)
again = os.dup(one)
os.write(again, b"g" * 3)
os.close(one)
os.lseek(again, 0, os.SEEK_END)
os.write(again, b"h")
end = os.open("one", os.O_WRONLY | os.O_APPEND)
os.write(end, b"i" * 7)
os.pwrite(end, b"j" * 7, 0)  # Linux puts it at the end all the same
os.mkdir("folder")
os.mkdir("folder/inner", dir_fd=here)
os.rename("one", "folder/two")
os.link("folder/two", "three")
os.rename("folder", "other", src_dir_fd=here, dst_dir_fd=here)
shutil.copyfile("other/two", "four")
os.truncate("four", 10)
with open("four", "r+") as four:
    four.write("x" * 3)
with open("five", "w") as five:
    five.write("y" * 3)
with open("five", "w") as five:
    five.write("z" * 3)
os.remove("three")
os.rmdir("other/inner")
with tempfile.NamedTemporaryFile(dir=".", delete=False) as made:
    made.write(b"temporary")
os.replace(made.name, "five")
subprocess.run(["sh", "-c", "echo child > six; echo more >> six; cp six seven; mv seven other"])
def work(number):
    with open(f"thread{number}", "wb", buffering=0) as file:
        for _ in range(20):
            file.write(b"t" * 50)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[one.start() for one in threads]
[one.join() for one in threads]
if (child := os.fork()) == 0:
    os.write(end, b"k")
    os._exit(0)
os.waitpid(child, 0)
os.mkdir("gone")
open("gone/x", "w").close()
os.rename("gone/x", "../x")
print("done", flush=True)
"""


def test_every_way_to_change_a_folder_is_recorded(tmp_path: Path) -> None:
    """By relative paths and descriptors, in children and threads; what is not synced may go."""
    operations = recorded(tmp_path, EVERYTHING)
    replay = Replay(operations)
    replay.go(len(operations))
    found = dict(settled(replay.disk.root))
    assert found["other/two"] is not None
    assert found["other/two"].endswith(b"i" * 7 + b"j" * 7 + b"k")
    assert found["five"] == b"temporary"
    assert found["other/seven"] == b"child\nmore\n"
    assert found["thread3"] == b"t" * 1000
    assert replay.acked == b"done\n"
    assert dict(settled(everything_lost(replay.disk))) == {}


SYNCED = """
import os, sys, threading
os.chdir(sys.argv[1])
fast = os.open("fast", os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
os.write(fast, b"fast")
plain = os.open("plain", os.O_CREAT | os.O_WRONLY)
os.pwritev(plain, [b"plain"], 0, os.RWF_DSYNC)
os.write(plain, b"not")
os.fsync(os.open(".", os.O_RDONLY))
os.write(1, b"1\\n")
late = os.open("late", os.O_CREAT | os.O_WRONLY)
os.write(late, b"late")
os.sync()
os.write(late, b"later")
with open("acks", "a") as acks:
    acks.write("2\\n")
"""


def test_what_was_synced_in_any_way_stays(tmp_path: Path) -> None:
    """By the way a file was opened, by a write's own flag, by a sync of all; and nothing else."""
    operations = recorded(tmp_path, SYNCED)
    replay = Replay(operations)
    replay.go(next(place for place, one in enumerate(operations, 1) if one.kind == "a"))
    left = {"fast": b"fast", "plain": b"plain"}
    assert dict(settled(everything_lost(replay.disk))) == left
    replay.go(len(operations))
    left |= {"plain": b"notin", "late": b"late"}
    assert dict(settled(everything_lost(replay.disk))) == left


def test_acknowledgements_in_a_file_stand_where_they_were_written(tmp_path: Path) -> None:
    """The file itself is no part of the disk; what is printed is no acknowledgement then."""
    operations = recorded(tmp_path, SYNCED, acks="{dir}/acks")
    replay = Replay(operations)
    replay.go(len(operations))
    assert replay.acked == b"2\n"
    assert operations[-1].kind == "a"
    assert "acks" not in dict(settled(replay.disk.root))


SLOW = """
import os, sys, threading
os.chdir(sys.argv[1])
log = os.open("log", os.O_CREAT | os.O_WRONLY)
os.fsync(os.open(".", os.O_RDONLY))
os.write(log, b"x" * 5_000_000)
thread = threading.Thread(target=os.fsync, args=(log,))
thread.start()
os.pwrite(log, b"y", 0)
thread.join()
os.write(1, b"1\\n")
"""


def test_what_is_written_while_a_sync_runs_is_not_saved_by_it(tmp_path: Path) -> None:
    """Wherever the write comes to stand: the sync saves what was there when it began."""
    operations = recorded(tmp_path, SLOW)
    kinds = [one.kind for one in operations if one.kind in "wse"]
    begin = [place for place, kind in enumerate(kinds) if kind == "s"][-1]
    second = [place for place, kind in enumerate(kinds) if kind == "w"][-1]
    replay = Replay(operations)
    replay.go(len(operations))
    lost = {doubt.key[0] for doubt in replay.disk.doubts()}
    assert lost == ({"sector"} if second > begin else set())
    kept = dict(settled(replay.disk.crash(answered({}))))["log"]
    assert kept is not None
    assert kept[:2] == b"yx"
