# SPDX-License-Identifier: Apache-2.0
"""Puts Weir in Gloo's place in this process, once PyTorch is imported.

Imported at the start of Python (by weir/hook/sitecustomize.py, or by the .pth file of
``python -m weir.run --install-hook``), so it imports nothing but what Python has loaded already.
"""

from __future__ import annotations

import sys

_MODULE = "torch.distributed.distributed_c10d"


class _Finder:
    """Finds PyTorch's module where it is, and changes it as soon as it has run."""

    @staticmethod
    def find_spec(name, path, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(_Finder)
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        else:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            replace_gloo(module)

        spec.loader.exec_module = exec_module
        return spec


def install() -> None:
    """From now on ``backend="gloo"`` is Weir in this process."""
    module = sys.modules.get(_MODULE)
    if module is not None:
        replace_gloo(module)
    elif _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def replace_gloo(module) -> None:
    """Changes PyTorch's module ``torch.distributed.distributed_c10d``."""
    original = getattr(module, "ProcessGroupGloo", None)
    if original is None or getattr(original, "is_weir", False):
        return

    class InPlace(type):
        # Weir itself is imported at the first group: here PyTorch is not whole yet.
        def __call__(cls, store, rank, size, *options, timeout=None, **other):
            from weir import _in_place

            return _in_place.create(store, rank, size, *options, timeout=timeout, **other)

        def __instancecheck__(cls, instance):
            weir = sys.modules.get("weir._C")
            return isinstance(instance, original) or (
                weir is not None and isinstance(instance, weir.Backend)
            )

        def __subclasscheck__(cls, subclass):
            return subclass is cls or issubclass(subclass, original)

        def __getattr__(cls, name):
            return getattr(original, name)

    class ProcessGroupGloo(metaclass=InPlace):
        """Weir's backend, where a program asks for Gloo's."""

        is_weir = True

    ProcessGroupGloo.__module__ = original.__module__
    module.ProcessGroupGloo = ProcessGroupGloo
    for other in ("torch.distributed", "torch._C._distributed_c10d"):
        if getattr(sys.modules.get(other), "ProcessGroupGloo", None) is original:
            sys.modules[other].ProcessGroupGloo = ProcessGroupGloo
