# score: 25
# hint: The interfaces of all lines
# Of the lines that list interfaces only the first one is read, which may be another node's.


# %% choose_nccl_settings
def choose_nccl_settings(log):
    changes = {}
    for name, value in re.findall(r"(NCCL_\w+) set by environment to (\S+)", log):
        is_off = name in ("NCCL_IB_DISABLE", "NCCL_P2P_DISABLE") and value.rstrip(".") != "0"
        if is_off or name in ("NCCL_ALGO", "NCCL_PROTO"):
            changes[name] = None
    found = set()
    if line := re.search(r"NET/Socket : Using (.*)", log):
        found |= set(re.findall(r"\](\S+?):", line[1]))
    good = found - {"lo", "docker0"}
    if good and good != found:
        changes["NCCL_SOCKET_IFNAME"] = ",".join(sorted(good))
    far = re.findall(r"GPU Direct RDMA Disabled for GPU .*\(distance (\d+) >", log)
    largest = max(map(int, far), default=0)
    if largest in (8, 9):
        changes["NCCL_NET_GDR_LEVEL"] = "SYS" if largest == 9 else "PHB"
    return changes
