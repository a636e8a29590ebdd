"""C++ source of a rack's policy: both actors of every server as a constexpr array in hex floats, and the
fields that say how loads are read; nothing else. The kernel cannot tell them from a loaded blob.
"""

from __future__ import annotations

from typing import Any

from steelyard.deploy.cpp_source import float_array


def generate(spec: dict[str, Any], heading: list[str]) -> str:
    """Source of a policy. spec: as native.decode_rack_policy gives it; heading: lines of its comment."""
    lines = [f"// {line}".rstrip() for line in heading]
    lines += [
        '#include "native/core/rack_policy.h"',
        "",
        "namespace steelyard::exported {",
        "namespace {",
        "",
    ]
    lines += ["// Per server: migration weight (N, K), bias (N), stealing weight (N, K), bias (N)."]
    lines += float_array("kActors", spec["actors"].ravel())
    lines += ["", "// Values in 64 bits; of floats their own."]
    lines += ["constexpr core::RackField kFields[] = {"]
    lines += [f'    {{"{name}", {bits:#x}ULL}},{_said(spec, name)}' for name, bits in spec["fields"].items()]
    lines += ["};", f"constexpr uint32_t kNumInputs = {spec['num_inputs']};"]
    sizes = f"{spec['num_servers']}, {len(spec['fields'])}"
    lines += ["constexpr core::RackPolicyView kPolicy = {"]
    lines += [f"    {spec['schema_hash']:#018x}ULL, {sizes}, kFields, kActors}};"]
    lines += ["", "}  // namespace", "}  // namespace steelyard::exported", ""]
    lines += ['#include "native/core/rack_policy_face.h"', ""]
    return "\n".join(lines)


def _said(spec: dict[str, Any], name: str) -> str:
    """A field's value for a reader, as a comment."""
    return f"  // {getattr(spec['config'], name)}"
