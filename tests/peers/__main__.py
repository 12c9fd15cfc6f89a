"""Install the peers that are missing, from their Debian packages: make peers"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.peers.peer import PEERS


def main() -> int:
    missing = [peer for peer in PEERS if not peer.is_installed]
    if not missing:
        print(f"All peers are installed: {', '.join(peer.name for peer in PEERS)}.")
        return 0
    names = ", ".join(peer.name for peer in missing)
    packages = list(dict.fromkeys(package for peer in missing for package in peer.packages))
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    if shutil.which("apt-get") is None:
        print(f"Missing: {names}. This system has no apt-get. Install {' '.join(packages)}, or their equivalents, by hand.")
        return 1
    if os.geteuid() != 0:
        print(f"Missing: {names}. Only root can install them. Run: sudo {' '.join(install)}")
        return 1
    print(f"Installing {' '.join(packages)} ...", flush=True)
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*install, "-qq"], env=quiet, stdout=subprocess.DEVNULL, check=True)
    still_missing = [peer.name for peer in missing if not peer.is_installed]
    if still_missing:
        print(f"Installed {' '.join(packages)}, but these are still missing: {', '.join(still_missing)}.")
    return 1 if still_missing else 0


if __name__ == "__main__":
    sys.exit(main())
