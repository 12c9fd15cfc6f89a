"""A Python environment with nothing but pyspark, pandas, pyarrow and their dependencies: what docs/cluster.md requires.

It is made of links to the packages of the environment that runs the tests, so it needs no network.
"""

from __future__ import annotations

import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

PACKAGES = ("pyspark", "pandas", "pyarrow")


def make_light_environment(folder: Path) -> Path:
    """Create the environment in a folder. Return its Python interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    for each in _with_dependencies(PACKAGES).values():
        for name in _top_level(each):
            (site_packages / name).symlink_to(str(each.locate_file(name)))
    return folder / "bin" / "python"


def _with_dependencies(names: tuple[str, ...]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    missing = list(names)
    while missing:
        name = missing.pop()
        if name in found:
            continue
        found[name] = distribution(name)
        requirements = map(Requirement, found[name].requires or ())
        missing += [each.name for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})]
    return found


def _top_level(package: Distribution) -> set[str]:
    return {path.parts[0] for path in package.files or () if path.parts[0] not in ("..", "__pycache__")}
