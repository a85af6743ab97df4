"""A small journal, and its check: an example for `logweir crashtest`. See docs/crash-testing.md.

    python journal.py run DIR [BUG]            writes records and prints the number of each
    python journal.py check DIR ACKED [BUG]    fails if one of those is missing or wrong

BUG plants a mistake: early-ack, lost-name or no-tail-check.
"""

import os
import sys
import zlib
from pathlib import Path


def payload(number):
    return b"%d" % number * 200


def read(folder, bug):
    """All records: those of the file `base`, then those of `log` up to its first torn one."""
    found = {}
    for name in ("base", "log"):
        path = Path(folder, name)
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
            body, _, checksum = line.rpartition(b" ")
            if checksum != b"%08x" % zlib.crc32(body) and bug != "no-tail-check":
                break
            number, _, data = body.partition(b" ")
            found[int(number or -1)] = data
    return found


def record(number, data):
    body = b"%d %s" % (number, data)
    return b"%s %08x\n" % (body, zlib.crc32(body))


def compact(folder, found, bug):
    """Put all records into a new `base`, which replaces the old one at one moment."""
    with open(os.path.join(folder, "base.new"), "wb") as file:
        file.writelines(record(number, data) for number, data in found.items())
        file.flush()
        os.fsync(file.fileno())
    os.rename(os.path.join(folder, "base.new"), os.path.join(folder, "base"))
    if bug != "lost-name":
        sync_folder(folder)


def sync_folder(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def run(folder, bug=""):
    found = read(folder, bug)
    for _ in range(3):
        compact(folder, found, bug)
        with open(os.path.join(folder, "log"), "wb") as log:
            if bug != "lost-name":
                sync_folder(folder)
            for number in range(len(found), len(found) + 5):
                found[number] = payload(number)
                log.write(record(number, found[number]))
                log.flush()
                if bug == "early-ack":
                    print(number, flush=True)
                os.fsync(log.fileno())
                if bug != "early-ack":
                    print(number, flush=True)


def check(folder, acked, bug=""):
    found = read(folder, bug)
    wrong = [number for number in found if found[number] != payload(number)]
    missing = [
        number for number in map(int, Path(acked).read_text().split()) if number not in found
    ]
    if wrong or missing:
        sys.exit(f"wrong: {wrong}, missing: {missing}")


if __name__ == "__main__":
    {"run": run, "check": check}[sys.argv[1]](*sys.argv[2:])
