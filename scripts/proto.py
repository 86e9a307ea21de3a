"""Regenerates the modules from ``protos/``: run by ``make proto``.

``--check`` compares them with the committed ones instead (exit code 1 if they differ).
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
#: Parent folder of the package, and the generated modules' folder in it.
PACKAGE = ROOT / "plugins" / "ensemble-service"
HOME = "ensemble_service/proto"
#: Each proto file with the name of its module.
PROTOS = {
    "protos/ensemble_operator.proto": "ensemble_operator.proto",
    "protos/ensemble/v1/ensemble.proto": "ensemble.proto",
}


def generate(target: Path) -> None:
    # protoc finds the generator of .pyi files on the PATH.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / HOME
        source.mkdir(parents=True)
        for path, name in PROTOS.items():
            (source / name).write_bytes((ROOT / path).read_bytes())
        code = protoc.main(
            [
                "protoc",
                f"-I{folder}",
                f"-I{files('grpc_tools') / '_proto'}",
                f"--python_out={target}",
                f"--grpc_python_out={target}",
                f"--mypy_out=quiet:{target}",
                *(str(source / name) for name in PROTOS.values()),
            ]
        )
    if code:
        raise SystemExit(code)


def main() -> int:
    if sys.argv[1:] != ["--check"]:
        generate(PACKAGE)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = [
            made.name
            for made in sorted((Path(folder) / HOME).iterdir())
            if not (PACKAGE / HOME / made.name).exists()
            or made.read_bytes() != (PACKAGE / HOME / made.name).read_bytes()
        ]
    if stale:
        print(f"not what the protos give: {', '.join(stale)}; run 'make proto'")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
