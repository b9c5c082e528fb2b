"""Starts another interpreter, in which neither leasehold nor this package is installed: both are loaded from files."""

from __future__ import annotations

from pathlib import Path

import leasehold

BOOT = """
import importlib, importlib.util, sys
spec = importlib.util.spec_from_file_location("leasehold", {init!r}, submodule_search_locations=[{folder!r}])
package = importlib.util.module_from_spec(spec)
sys.modules["leasehold"] = package
spec.loader.exec_module(package)
sys.path.insert(0, {museum!r})
importlib.import_module(sys.argv[1]).main(*sys.argv[2:])
"""


def command(python: str, module: str, *arguments: str) -> list[str]:
    """Return the command line that runs ``main`` of a module of this package."""
    folder = Path(leasehold.__file__).parent
    boot = BOOT.format(
        init=str(folder / "__init__.py"), folder=str(folder), museum=str(Path(__file__).parent.parent.absolute())
    )
    return [python, "-c", boot, module, *arguments]
