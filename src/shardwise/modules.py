"""Users' Python files as modules."""

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType


def module_of(file: Path | str, name: str | None = None) -> ModuleType:
    """The module of a Python file, under this name; a file is run once in a process, whatever it is called.

    Running it again would register its custom operators again, and torch frees those that earlier models hold.
    """
    path = Path(file).resolve()
    found = _loaded(path)
    if found is None:
        # The default hides no installed module, and no other file of this name.
        spec = importlib.util.spec_from_file_location(name or _free(f"_shardwise_{path.stem}"), path)
        assert spec is not None and spec.loader is not None
        found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # classes look up their module
        try:
            spec.loader.exec_module(found)
        except BaseException:
            del sys.modules[spec.name]
            raise
    if name is not None:
        sys.modules[name] = found
    return found


def _loaded(path: Path) -> ModuleType | None:
    files = ((module, getattr(module, "__file__", None)) for module in list(sys.modules.values()))
    return next((module for module, file in files if file and _is_same(file, path, module)), None)


def _is_same(file: str, path: Path, module: ModuleType) -> bool:
    # The script itself is not a module that others can import by name.
    return file.endswith(path.name) and module.__name__ != "__main__" and Path(file).resolve() == path


def _free(name: str) -> str:
    candidates = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2)))
    return next(candidate for candidate in candidates if candidate not in sys.modules)
