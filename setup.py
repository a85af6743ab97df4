"""Build script: everything is in pyproject.toml but the compiled kernels.

The kernels are plain Python files that Cython compiles in pure Python mode. They are optional:
where no compiler is present the same files run interpreted (`logweir info` says which).
Set LOGWEIR_PURE=1 to leave them uncompiled on purpose.
"""

import os

from setuptools import Extension, setup

KERNELS = {
    "logweir.wal.kernel": "wal/kernel.py",
    "logweir.store.kernel": "store/kernel.py",
}


def extensions() -> list[Extension]:
    if os.environ.get("LOGWEIR_PURE") == "1":
        return []
    from Cython.Build import cythonize

    return cythonize(
        [
            Extension(name, [source], optional=True, extra_compile_args=["-O3"])
            for name, source in KERNELS.items()
            if os.path.exists(source)
        ],
        language_level=3,
        build_dir="build/cython",
    )


setup(ext_modules=extensions())
