"""Check a kit of specviz and prepare a result to be sent back. Needs only Python.

python check.py            check the kit's checksums and print the Python and package versions
python check.py FOLDER     add the setup and checksums to a folder that specviz replay wrote
"""

import hashlib
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
SENT = ("replay.json", "setup.json")


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_kit():
    wrong = 0
    sums = HERE / "SHA256SUMS"
    lines = sums.read_text(encoding="utf8", errors="replace").splitlines() if sums.is_file() else []
    if not lines:
        wrong += 1
        print(f"changed or missing: {sums.name}")
    for line in lines:
        wanted, _, name = line.partition("  ")
        if not (HERE / name).is_file() or digest(HERE / name) != wanted:
            wrong += 1
            print(f"changed or missing: {name}")
    if sys.version_info < (3, 11):  # noqa: UP036 - the kit may meet an older one
        wrong += 1
        print("Python 3.11 or newer is needed")
    for line in (HERE / "constraints.txt").read_text(encoding="utf8").splitlines():
        name, _, wanted = line.partition("==")
        try:
            here = version(name).partition("+")[0]
        except PackageNotFoundError:
            print(f"not installed: {name} (needed only for some setups)")
            continue
        if here != wanted:
            print(f"another version: {name} {here}, the kit was made with {wanted}")
    print("the kit is whole" if not wrong else f"{wrong} fault{'s' * (wrong != 1)}")
    return min(wrong, 1)


def pack(folder):
    if not (folder / "replay.json").is_file():
        print(f"{folder} has no replay.json: specviz replay --out {folder} writes it when it is done")
        return 1
    shutil.copyfile(HERE / "setup.json", folder / "setup.json")
    sums = "".join(f"{digest(folder / name)}  {name}\n" for name in SENT)
    (folder / "SHA256SUMS").write_text(sums, encoding="utf8")
    print(f"ready to send: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(pack(Path(sys.argv[1])) if len(sys.argv) > 1 else check_kit())
