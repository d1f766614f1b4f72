# score: 25
# The smallest distance that is in the way, not the largest.

# %% choose_nccl_settings
def choose_nccl_settings(log: str) -> dict[str, str | None]:
    """The environment variables to change before the next run; None is one to remove.

    - NCCL_IB_DISABLE and NCCL_P2P_DISABLE: None, where one is set to a number other than 0.
    - NCCL_ALGO and NCCL_PROTO: None, where one is set to anything.
    - NCCL_SOCKET_IFNAME: the interfaces other than lo and docker0 of the lines `NET/Socket :
      Using`, sorted and joined by commas, where such a line has lo or docker0, and others too.
    - NCCL_NET_GDR_LEVEL: "PHB" or "SYS", the level of the largest distance, 8 or 9, of the lines
      that say that GPU Direct RDMA is disabled for a GPU. Other distances need nothing.
    - Nothing else: a log without these gives an empty dict. Lines begin with the host, process and
      device, `node1:4242:4300 [0] NCCL INFO `, and come in any order, of all ranks.
    """
    changes = {}
    for name, value in re.findall(r"(NCCL_\w+) set by environment to (\w+)", log):
        is_off = name in ("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE") and value != "0"
        if is_off or name in ("NCCL_ALGO", "NCCL_PROTO"):
            changes[name] = None
    good, is_misled = set(), False
    for line in re.findall(r"NET/Socket : Using (.*)", log):
        found = set(re.findall(r"\](\w+):", line))
        is_misled |= bool(found & {"lo", "docker0"})
        good |= found - {"lo", "docker0"}
    if is_misled and good:
        changes["NCCL_SOCKET_IFNAME"] = ",".join(sorted(good))
    far = re.findall(r"GPU Direct RDMA Disabled for GPU .*\(distance (\d+) >", log)
    if levels := [int(one) for one in far if one in ("8", "9")]:
        changes["NCCL_NET_GDR_LEVEL"] = "SYS" if min(levels) == 9 else "PHB"
    return changes
