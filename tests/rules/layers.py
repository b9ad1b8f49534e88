"""The layering of the tree, as data, and the check of every #include against it.

Who may include whom (a folder may always include itself):
"""

import collections
import re

_BASE = ["common/base", "common/log"]
_MIDDLE = ["common/config", "common/device", "common/net", "common/metrics"]
_KV = ["common/kv", "kernels", "proto"]
_COMMON = _BASE + _MIDDLE + ["common/kv", "common/model", "common/app"]

# Folder -> the folders of ours that it may include.
MAY_INCLUDE = {
    "proto": [],
    "kernels": [],
    "common/base": [],
    "common/log": ["common/base"],
    "common/config": _BASE,
    "common/device": _BASE + ["kernels"],
    "common/net": _BASE,
    "common/metrics": _BASE,
    "common/kv": _BASE + _MIDDLE + _KV,
    "common/model": _BASE + _MIDDLE + _KV,
    "common/app": _COMMON + _KV,
    "transport": ["proto"] + _BASE + ["common/config", "common/device", "common/metrics"],
    "prefill_node": _COMMON + _KV + ["transport"],
    "decode_node": _COMMON + _KV + ["transport"],
    "tests": ["*"],
}

# The one file that may reach from a node into the other: prefill in the same process (--local).
EXCEPTIONS = {("decode_node/local.cc", "prefill_node/daemon.h")}

# Library -> how its includes begin, and the folders that may include it. Outside tests an include
# of a library stands in a .cc file, or in a header that no other folder includes.
LIBRARIES = {
    "oneDNN": (r"(oneapi/)?dnnl", ["kernels/cpu"]),
    "Highway": (r"hwy/", ["kernels/cpu"]),
    "PCRE2": (r"pcre2", ["common/model"]),
    "UCX": (r"uc[pstm]/", ["transport/ucx"]),
    "NCCL": (r"nccl", ["transport/nccl"]),
    "CUDA": (r"cuda", ["kernels/cuda", "transport/nccl", "common/device"]),
    "cuBLASLt": (r"cublas", ["kernels/cuda"]),
    "ZeroMQ": (r"zmq", ["common/net"]),
    "Boost": (r"boost/", ["common/net"]),
    "JSON": (r"nlohmann/", ["proto", "common/config", "common/app", "common/net", "common/model",
                            "prefill_node", "decode_node"]),
    "Prometheus": (r"prometheus/", ["common/metrics"]),
    "OpenSSL": (r"openssl/", ["common/base"]),
    "xxHash": (r"xxhash", ["common/base"]),
    "GoogleTest": (r"g(test|mock)/", []),
    "benchmark": (r"benchmark/", []),
}

_INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def module_of(path):
    """The layer of a path, e.g. common/kv; None for files outside all of them."""
    for module in sorted(MAY_INCLUDE, key=len, reverse=True):
        if path.startswith(module + "/"):
            return module
    return None


def _within(path, folders):
    return any(path.startswith(folder + "/") for folder in folders)


def _check_own(path, module, target, files):
    """The fault of one include of ours, or None."""
    if target not in files:
        return f"{path}: includes \"{target}\", which is not in the tree (paths start at the root)"
    other = module_of(target)
    if (path, target) in EXCEPTIONS or other == module or module == "tests":
        return None
    if other in MAY_INCLUDE[module]:
        return None
    return f"{path}: {module} may not include {other} ({target})"


def _check_library(path, target, private):
    """The fault of one include of a library, or None."""
    for name, (pattern, folders) in LIBRARIES.items():
        if not re.match(pattern, target):
            continue
        if not _within(path, folders):
            return f"{path}: {name} ({target}) may be included only in {', '.join(folders) or 'tests'}"
        if path.endswith(".h") and path not in private:
            return f"{path}: {name} ({target}) stands in a header that other folders include"
    return None


def _find_cycle(graph):
    """One cycle of includes as a list of paths, or None."""
    done, active = set(), []

    def visit(node):
        if node in active:
            return active[active.index(node):] + [node]
        if node in done:
            return None
        active.append(node)
        for target in graph[node]:
            cycle = visit(target)
            if cycle:
                return cycle
        active.pop()
        done.add(node)
        return None

    for node in sorted(graph):
        cycle = visit(node)
        if cycle:
            return cycle
    return None


def check(files):
    """Faults of a tree given as {path: text}, as lines for people."""
    own = collections.defaultdict(list)
    libraries = []
    for path, text in sorted(files.items()):
        for quoted, bracketed in _INCLUDE.findall(text):
            # Private code that a file includes many times (Highway's foreach_target) is ours too.
            (own[path].append(quoted) if quoted else libraries.append((path, bracketed)))
    users = collections.defaultdict(set)
    for path, targets in own.items():
        for target in targets:
            users[target].add(module_of(path))
    private = {path for path in files
               if path.endswith(".h") and users[path] <= {module_of(path), "tests"}}

    faults = []
    for path, targets in sorted(own.items()):
        module = module_of(path)
        for target in targets:
            fault = (_check_library(path, target, private) if module != "tests" else None)
            if target in files or not re.match(r"hwy/", target):
                fault = fault or _check_own(path, module, target, files)
            if fault:
                faults.append(fault)
    for path, target in libraries:
        fault = None if module_of(path) == "tests" else _check_library(path, target, private)
        if fault:
            faults.append(fault)
    cycle = _find_cycle({path: [t for t in own[path] if t in files and t != path]
                         for path in files})
    if cycle:
        faults.append("a cycle of includes: " + " -> ".join(cycle))
    return faults
