"""What a VPP on a testbed is told, and what its `show steelyard` says; docs/vpp.md tells the commands.

Forwarding is direct server return on layer 3: VPP writes a server's address and a DSCP into a packet, and the
server's kernel puts the virtual address back (`network.restore_vip`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from steelyard.agents import rules
from steelyard.deploy.testbed import lb_config, network
from steelyard.envs.scenario import Scenario

_INTERFACE = f"host-{network.DEVICE}"
_STOCK_VIP = f"{network.VIP}/32 protocol tcp port {network.HTTP_PORT}"
_SETTINGS = {
    "interval_s": "interval",
    "reservoir_size": "reservoir-size",
    "decay_s": "decay",
    "shared_memory": "shared-memory",
    "max_age_s": "max-age",
}
"""Keys of a VIP of steelyard-lb and what the plugin calls them."""
_TROUBLE = ("untracked", "half-open refused", "evicted")


@dataclass(frozen=True)
class Line:
    """A line of VPP's command line, and how its answer begins if it was carried out; empty: no answer."""

    text: str
    answer: str = ""


def link_lines(balancer: int, servers: int) -> list[Line]:
    """The cable of a balancer, and the servers at its end.

    Neighbours are fixed: VPP drops a packet for a neighbour whose MAC it has still to ask for.
    """
    mac, address = network.balancer_mac(balancer), network.balancer_address(balancer)
    device = f"name {network.DEVICE} v2 cksum-gso-disable hw-addr {mac}"
    return [
        Line(f"create host-interface {device}", _INTERFACE),
        Line(f"set interface state {_INTERFACE} up"),
        Line(f"set interface ip address {_INTERFACE} {address}/24"),
        *(
            Line(f"set ip neighbor {_INTERFACE} {network.server_address(j)} {network.server_mac(j)}")
            for j in range(servers)
        ),
    ]


def plugin_lines(
    scenario: Scenario, balancer: int, source: str, shared_memory: Path, seed: int, publish: bool = False
) -> list[Line]:
    """The plugin with the settings that steelyard-lb has in the same place; arguments as lb_config.tree."""
    tree = lb_config.tree(scenario, balancer, source, shared_memory, seed, publish)
    (vip,) = tree["vip"]
    hosted = source not in rules.rule_names()
    settings = " ".join(f"{word} {vip[key]}" for key, word in _SETTINGS.items() if key in vip)
    policy = f"policy {vip.get('policy_file', 'agent')} " if hosted else ""
    identity = f"address {vip['address']} port {vip['port']} forwarding l3-dsr dscp {network.DSCP}"
    lines = [
        f"interface {_INTERFACE}",
        f"seed {tree['hash_seed']}",
        f"balancer {balancer} of {tree['num_balancers']}",
        f"vip add web {identity} rule {'lsq' if hosted else source}",
        *(f"server add web {server['address']} weight {server['weight']:g}" for server in vip["server"]),
        # A policy is for all of the servers, so it comes after them.
        f"vip set web {policy}{settings}",
    ]
    return [Line(f"steelyard {line}") for line in lines]


def stock_lines(scenario: Scenario, balancer: int, source: str) -> list[Line]:
    """VPP's own balancer by the rule ecmp or wcmp.

    It knows no weights: a server stands in its Maglev table under as many addresses as its weight says.
    """
    weights = shares(scenario) if source == "wcmp" else [1] * scenario.num_servers
    lines = [
        Line(f"lb conf ip4-src-address {network.balancer_address(balancer)} buckets 65536"),
        Line(f"lb vip {_STOCK_VIP} encap l3dsr dscp {network.DSCP} new_len 4096", "lb_vip_add ok"),
    ]
    names: list[str] = []
    for j, weight in enumerate(weights):
        for _ in range(weight):
            names.append(network.other_address(len(names)))
            lines.append(Line(f"ip route add {names[-1]}/32 via {network.server_address(j)} {_INTERFACE}"))
    return [*lines, Line(f"lb as {_STOCK_VIP} {' '.join(names)}")]


def shares(scenario: Scenario) -> list[int]:
    """The configured weights as small whole numbers, at most 32."""
    whole = network.kernel_weights(scenario.configured_weights())
    return [weight // math.gcd(*whole) for weight in whole]


def trouble(shown: str) -> str:
    """What `show steelyard` tells of a VIP that was not served as it should be; empty: nothing."""
    found = []
    if unhealthy := re.search(
        r"^  policy .*: not followed \(lsq\): (.*), \d+ decisions", shown, re.MULTILINE
    ):
        found.append(f"policy not followed: {unhealthy[1]}")
    if (fell := re.search(r"decisions, (\d+) fallbacks$", shown, re.MULTILINE)) and int(fell[1]):
        found.append(f"{fell[1]} fallbacks of the policy")
    for name in _TROUBLE:
        if (count := re.search(rf"[;,] {name} (\d+)", shown)) and int(count[1]):
            found.append(f"{count[1]} {name}")
    return ", ".join(found)
