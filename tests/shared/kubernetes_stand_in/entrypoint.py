"""Entry points of the Flux Operator's containers (v1alpha2, commit 0d75cef8), rewritten.

Relevant quirks: the lead broker is the pod with the host name ``NAME-0``; without
``logging.strict`` nothing stops the script, so that a container ends with the exit code of its last
line, 0, however Flux ended; ``commands.post`` runs on every node; and ``logging.quiet`` silences
only the last line of a command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["entrypoints", "post_script", "runs_flux"]

Object = Mapping[str, Any]


def runs_flux(spec: Object, index: int) -> bool:
    """Return whether a container runs Flux. If there is only one, it does."""
    containers = spec["containers"]
    return bool(containers[index].get("runFlux")) or len(containers) == 1


def entrypoints(minicluster: Object) -> dict[str, str]:
    """Return the data of the ConfigMap ``NAME-entrypoint``."""
    name, spec = minicluster["metadata"]["name"], minicluster["spec"]
    view = _view(spec)
    found = {}
    for index, container in enumerate(spec["containers"]):
        if runs_flux(spec, index):
            found[f"wait-{index}"] = _wait(name, spec, container)
        elif not container.get("noWrapEntrypoint"):
            found[f"start-{index}"] = _start(spec, container)
    size = max(spec.get("maxSize") or 0, spec["size"])
    found[view["name"]] = (
        f"#!/bin/sh\nmkdir -p {view['mountPath']}/view {view['mountPath']}/config/etc/flux/system\n"
        f"echo '{name}-[0-{size - 1}]' > {view['mountPath']}/config/etc/flux/system/hostlist\n"
        f"touch {view['mountPath']}/flux-operator-done.txt\n"
    )
    found["curve.cert"] = "not a certificate\n"
    return found


def _view(spec: Object) -> dict[str, Any]:
    given = (spec.get("flux") or {}).get("container") or {}
    return {"name": "flux-view", "mountPath": "/mnt/flux", **given}


def _command(container: Object, which: str) -> str:
    return str((container.get("commands") or {}).get(which) or "")


def _logging(spec: Object) -> tuple[str, str, str]:
    """Return the script's strict mode, and the redirections that silence stdout and all output."""
    logging = spec.get("logging") or {}
    quiet = logging.get("quiet")
    strict = "set -eEu -o pipefail" if logging.get("strict") else ""
    return strict, " > /dev/null" if quiet else "", " > /dev/null 2>&1" if quiet else ""


def _wait(name: str, spec: Object, container: Object) -> str:
    strict, quiet, silent = _logging(spec)
    flux = spec.get("flux") or {}
    completes = str(bool(flux.get("completeWorkers"))).lower()
    base = _view(spec)["mountPath"]
    minimum = spec.get("minSize") or 0
    quorum = f" -Sbroker.quorum={minimum}" if minimum else ""
    command = container.get("command") or ""
    return f"""\
#!/bin/sh
{strict}
user=$(whoami)
{_command(container, "init")}{quiet}
viewbase="{base}"
configroot=${{viewbase}}/config
export PATH=$PATH:${{viewbase}}/view/bin
mkdir -p ${{configroot}}/curve
cp /flux_operator/curve.cert ${{configroot}}/curve/curve.cert
hosts=$(cat ${{configroot}}/etc/flux/system/hostlist)
flux R encode --hosts=${{hosts}} --local > ${{configroot}}/etc/flux/system/R
options="-Scron.directory=${{configroot}}/cron.d -Srundir=${{configroot}}/run/flux{quorum}"
{_command(container, "pre")}{silent}
if [ $(hostname) == "{name}-0" ]; then
{_command(container, "brokerPre")}{silent}
  flux start -o --config ${{configroot}}/etc/flux/config ${{options}} {_command(container, "prefix")} {command}
else
{_command(container, "workerPre")}{silent}
  while true
  do
    flux start -o --config ${{configroot}}/etc/flux/config ${{options}}
    retval=$?
    if [[ "${{retval}}" -eq 0 ]] || [[ "{completes}" == "true" ]]; then
      break
    fi
    sleep 15
  done
fi
{_post(container, base)}"""


def _post(container: Object, base: str) -> str:
    return f"""\
{_command(container, "post")}
touch {base}/flux-operator-complete.txt
"""


def post_script(spec: Object) -> str:
    """Return what the container does after Flux has ended, with any exit code."""
    index = next(at for at in range(len(spec["containers"])) if runs_flux(spec, at))
    return _post(spec["containers"][index], _view(spec)["mountPath"])


def _start(spec: Object, container: Object) -> str:
    strict, quiet, silent = _logging(spec)
    base = _view(spec)["mountPath"]
    wait = "" if (spec.get("flux") or {}).get("noWaitSocket") else "goshare-wait-fs"
    socket = f"{wait} -p {base}/view/run/flux/local{silent}" if wait else ""
    return f"""\
#!/bin/sh
{_command(container, "init")}{quiet}
{strict}
export PATH=$PATH:{base}/view/bin
{_command(container, "servicePre")}{silent}
{socket}
{container.get("command") or ""}
{_command(container, "post")}
"""
