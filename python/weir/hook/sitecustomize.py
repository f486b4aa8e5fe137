# SPDX-License-Identifier: Apache-2.0
"""First on PYTHONPATH under ``python -m weir.run``: puts Weir in Gloo's place, then runs the
sitecustomize that Python would have run without it."""

import os
import sys


def _with_weir() -> None:
    if os.environ.get("WEIR_IN_PLACE_OF") != "gloo":
        return
    from importlib.util import module_from_spec, spec_from_file_location

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(os.path.dirname(package), "weir_in_place.py")
    spec = spec_from_file_location("weir_in_place", path)
    module = module_from_spec(spec)
    sys.modules["weir_in_place"] = module
    try:
        spec.loader.exec_module(module)
        module.install()
    except Exception as error:  # Python would print it and go on, with Gloo
        sys.exit(f"weir: cannot be put in Gloo's place, install the package again: {error}")


def _chain() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    own = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != own]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_with_weir()
_chain()
