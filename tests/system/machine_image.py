"""The image of a machine: this one's own systemd as PID 1, and slotproxy as the README installs it.

The environment below /opt/slotproxy is a real one (`pyvenv.cfg`), with the packages that requirements.lock names, as
they are installed here. Units and users come from `deploy/`. No network is needed.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.system.images import PYTHON, ROOT, Files, Images, libraries, tree

HOME = "/opt/slotproxy"
LIBRARY = f"{HOME}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
SHARE = f"{HOME}/share/slotproxy"
INIT = "/lib/systemd/systemd"
BOOT = f"[ ! -e /sys/fs/cgroup/cgroup.controllers ] || mount -o remount,bind,rw /sys/fs/cgroup; exec {INIT}"
"""systemd keeps its groups where Docker has mounted them for looking only, on a host with cgroup v2 alone."""
_DAEMONS = ("systemd", "systemd-journald", "systemd-shutdown", "systemd-cgroups-agent", "systemd-executor")
_TOOLS = ("/bin/kill", "/bin/mount", "/bin/cat", "/bin/chown", "/bin/chgrp", "/bin/chmod", "/usr/bin/install")
_COMMANDS = {"slotproxy": "slotproxy.__main__", "slotctl": "slotproxy.cli"}
_SCRIPT = "#!{home}/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
_BOOT = """\
[Unit]
Description=All that this machine starts
Requires=basic.target
After=basic.target
Wants=systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service multi-user.target
AllowIsolate=yes
"""


def machine_image(images: Images) -> str:
    """Built when it isn't there yet: some seconds; after a change of our own code, one or two."""
    compiled = [f'RUN ["{HOME}/bin/python", "-m", "compileall", "-q", "{LIBRARY}"]']
    booting = images.layer("systemd", images.python, _systemd_files(), ())
    environment = images.layer("environment", booting, _environment_files(), compiled)
    return images.layer("machine", environment, _our_files(), compiled)


def _systemd_files() -> Files:
    """systemd with all its targets and tools; which of them are started, `default.target` alone says."""
    listed = subprocess.run(["dpkg-query", "--listfiles", "systemd"], capture_output=True, text=True, check=True).stdout
    wanted = re.compile(r"(/usr)?(/bin/|/lib/systemd/system/[^/]+$)")
    paths = [Path(line) for line in listed.splitlines() if wanted.match(line)]
    paths += [Path("/lib/systemd") / name for name in _DAEMONS] + [Path(name) for name in _TOOLS]
    found = [path for path in paths if path.is_file()]
    files: Files = {str(path): path for path in found}
    files |= {str(path): path for path in libraries([path for path in found if _program(path)])}
    files |= {"/etc/machine-id": b"", "/etc/os-release": b"ID=test\n", "/etc/group": b"root:x:0:\n"}
    files |= {"/etc/nsswitch.conf": b"passwd: files\ngroup: files\n"}
    return files | {"/etc/systemd/system/default.target": _BOOT.encode()}


def _program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _environment_files() -> Files:
    configuration = f"home = {sys.base_prefix}/bin\ninclude-system-site-packages = false\n"
    files: Files = {f"{HOME}/pyvenv.cfg": configuration.encode(), f"{HOME}/bin/python": PYTHON}
    needed = dict(_dependencies())
    files |= {str(path): path for path in libraries([path for path in needed.values() if path.suffix == ".so"])}
    return files | {f"{LIBRARY}/{name}": path for name, path in needed.items()}


def _dependencies() -> Iterator[tuple[str, Path]]:
    """Each file of what slotproxy needs, below site-packages; without caches, which carry paths."""
    for name in re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE):
        try:
            files = importlib.metadata.files(name) or ()
        except importlib.metadata.PackageNotFoundError:  # another system's
            continue
        for file in files:
            path = Path(str(file.locate()))
            if ".." not in file.parts and path.suffix != ".pyc" and path.is_file():
                yield str(file), path


def _our_files() -> Files:
    code = [path for name in ("slotproxy", "swap", "engines") for path in tree(ROOT / name) if path.suffix != ".pyc"]
    files: Files = {f"{LIBRARY}/{path.relative_to(ROOT)}": path for path in code}
    files |= {f"{SHARE}/{path.relative_to(ROOT)}": path for path in tree(ROOT / "deploy")}
    for name, module in _COMMANDS.items():
        files[f"{HOME}/bin/{name}"] = _SCRIPT.format(home=HOME, module=module).encode()
    return files
