"""Unpacks the headers of FreeBSD/amd64 from a wheel of the package ziglang.

usage: unpack-headers.py WHEEL FOLDER
"""

import pathlib
import sys
import zipfile

PREFIXES = tuple(
    f"ziglang/lib/libc/include/{name}/" for name in ("generic-freebsd", "x86_64-freebsd-none")
)


def main() -> None:
    wheel, folder = sys.argv[1:]
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(PREFIXES) and not name.endswith("/"):
                path = pathlib.Path(folder, *pathlib.PurePosixPath(name).parts[1:])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))


if __name__ == "__main__":
    main()
