import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load_models():
    """The module examples/models.py, once."""
    if "zoo_models" not in sys.modules:
        spec = spec_from_file_location("zoo_models", EXAMPLES / "models.py")
        sys.modules["zoo_models"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["zoo_models"])
    return sys.modules["zoo_models"]


@pytest.fixture(scope="session")
def models():
    return load_models()
