"""Test of the operator with a uid that has no name in /etc/passwd, as on some clusters."""

from __future__ import annotations

import subprocess
import sys

WORKS = """
import os, pwd
for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME", "POD_ID"):
    os.environ.pop(name, None)
def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = unknown
os.getuid = lambda: 65532

import asyncio, kopf
from ensemble_operator.settings import Settings
from ensemble_operator.kopf_watch import Operator

async def main():
    stop = asyncio.Event()
    login = lambda: kopf.ConnectionInfo(server="http://127.0.0.1:9", token="x")
    operator = Operator(Settings(), ("default",), login=login)
    operator._has_flux_operator = there
    asyncio.get_running_loop().call_later(2, stop.set)
    await operator.run(stop)

async def there():
    return True

asyncio.run(main())
print("ended")
"""


def test_a_uid_without_a_name_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKS], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout == "ended\n", done.stderr[-2000:]
    assert "getpwuid" not in done.stderr
