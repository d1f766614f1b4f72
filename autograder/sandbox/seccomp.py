"""A seccomp filter of the system calls and socket families that code in a jail may use; all others fail.

The list began as Docker's default profile. It excludes calls whose effects outlive the jail as neither a file nor a
process (System V and POSIX queues, keys), that use memory not counted by any limit (memfd, asynchronous I/O, larger
pipes and sockets), that access other processes or bypass this filter (ptrace, io_uring), and all that need rights.
"""

from __future__ import annotations

import errno
import platform
import socket
from collections.abc import Iterable, Sequence

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant

# name, number on x86_64, number on aarch64; a dash if there is no such call
_ALLOWED = """
# files
access 21 -   chdir 80 49   chmod 90 -   chown 92 -   close 3 57   close_range 436 436   copy_file_range 326 285
creat 85 -   dup 32 23   dup2 33 -   dup3 292 24   faccessat 269 48   faccessat2 439 439   fadvise64 221 223
fallocate 285 47   fchdir 81 50   fchmod 91 52   fchmodat 268 53   fchmodat2 452 452   fchown 93 55
fchownat 260 54   fdatasync 75 83   fgetxattr 193 10   flistxattr 196 13   flock 73 32
fstat 5 80   fstatfs 138 44   fsync 74 82   ftruncate 77 46   futimesat 261 -   getcwd 79 17   getdents 78 -
getdents64 217 61   getxattr 191 8   inotify_add_watch 254 27   inotify_init 253 -   inotify_init1 294 26
inotify_rm_watch 255 28   ioctl 16 29   lchown 94 -   lgetxattr 192 9   link 86 -   linkat 265 37
listxattr 194 11   llistxattr 195 12   lseek 8 62   lstat 6 -   mkdir 83 -   mkdirat 258 34   mknod 133 -
mknodat 259 33   newfstatat 262 79   open 2 -   openat 257 56   openat2 437 437   pread64 17 67   preadv 295 69
preadv2 327 286   pwrite64 18 68   pwritev 296 70   pwritev2 328 287   read 0 63   readahead 187 213
readlink 89 -   readlinkat 267 78   readv 19 65   rename 82 -   renameat 264 38   renameat2 316 276   rmdir 84 -
sendfile 40 71   splice 275 76   stat 4 -   statfs 137 43   statx 332 291   symlink 88 -   symlinkat 266 36
sync_file_range 277 84   tee 276 77   truncate 76 45   umask 95 166   unlink 87 -   unlinkat 263 35
utime 132 -   utimensat 280 88   utimes 235 -   vmsplice 278 75   write 1 64   writev 20 66
# memory
brk 12 214   get_mempolicy 239 236   madvise 28 233   map_shadow_stack 453 453   mbind 237 235
membarrier 324 283   mincore 27 232   mlock 149 228   mlock2 325 284   mlockall 151 230   mmap 9 222
mprotect 10 226   mremap 25 216   mseal 462 462   msync 26 227   munlock 150 229   munlockall 152 231
munmap 11 215   pkey_alloc 330 289   pkey_free 331 290   pkey_mprotect 329 288   set_mempolicy 238 237
# processes, threads and their limits
arch_prctl 158 -   capget 125 90   execve 59 221   execveat 322 281   exit 60 93   exit_group 231 94   fork 57 -
futex 202 98   futex_requeue 456 456   futex_wait 455 455   futex_waitv 449 449   futex_wake 454 454
get_robust_list 274 100   getcpu 309 168   getegid 108 177   geteuid 107 175   getgid 104 176
getgroups 115 158   getpgid 121 155   getpgrp 111 -   getpid 39 172   getppid 110 173   getpriority 140 141
getresgid 120 150   getresuid 118 148   getrlimit 97 163   getrusage 98 165   getsid 124 156   gettid 186 178
getuid 102 174   ioprio_get 252 31   kill 62 129   pidfd_open 434 434   pidfd_send_signal 424 424
prctl 157 167   restart_syscall 219 128   rseq 334 293   sched_get_priority_max 146 125
sched_get_priority_min 147 126   sched_getaffinity 204 123   sched_getattr 315 275   sched_getparam 143 121
sched_getscheduler 145 120   sched_rr_get_interval 148 127   sched_yield 24 124   set_tid_address 218 96
setpgid 109 154   setrlimit 160 164   setsid 112 157   tgkill 234 131   tkill 200 130   vfork 58 -
wait4 61 260   waitid 247 95
# signals, clocks and timers
alarm 37 -   clock_getres 229 114   clock_gettime 228 113   clock_nanosleep 230 115   getitimer 36 102
gettimeofday 96 169   nanosleep 35 101   pause 34 -   rt_sigaction 13 134   rt_sigpending 127 136
rt_sigprocmask 14 135   rt_sigqueueinfo 129 138   rt_sigreturn 15 139   rt_sigsuspend 130 133
rt_sigtimedwait 128 137   rt_tgsigqueueinfo 297 240   setitimer 38 103   sigaltstack 131 132   signalfd 282 -
signalfd4 289 74   time 201 -   timer_create 222 107   timer_delete 226 111   timer_getoverrun 225 109
timer_gettime 224 108   timer_settime 223 110   timerfd_create 283 85   timerfd_gettime 287 87
timerfd_settime 286 86   times 100 153
# waiting, pipes and sockets
accept 43 202   accept4 288 242   bind 49 200   connect 42 203   epoll_create 213 -   epoll_create1 291 20
epoll_ctl 233 21   epoll_pwait 281 22   epoll_pwait2 441 441   epoll_wait 232 -   eventfd 284 -
eventfd2 290 19   getpeername 52 205   getsockname 51 204   getsockopt 55 209   listen 50 201   pipe 22 -
pipe2 293 59   poll 7 -   ppoll 271 73   pselect6 270 72   recvfrom 45 207   recvmmsg 299 243   recvmsg 47 212
select 23 -   sendmmsg 307 269   sendmsg 46 211   sendto 44 206   shutdown 48 210
# the rest
getrandom 318 278   sysinfo 99 179   uname 63 160
"""
# allowed with some arguments only
_CONDITIONAL = """
clone 56 220   fcntl 72 25   prlimit64 302 261   sched_setaffinity 203 122   sched_setattr 314 274
sched_setparam 142 118   sched_setscheduler 144 119   setpriority 141 140
setsockopt 54 208   socket 41 198   socketpair 53 199
"""
# libraries try these first, and use alternatives only if the kernel seems to be older. The flags of clone3 are in
# memory, where filters cannot read them; limits do not count the contents of a memfd
_UNKNOWN = """
clone3 435 435   memfd_create 319 279   memfd_secret 447 447
"""
_NEWEST = 462  # mseal; libraries assume that newer calls are absent on older kernels
_MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}  # column in the lists, AUDIT_ARCH

_LOAD, _AND, _EQUAL, _AT_LEAST, _GIVE = 0x20, 0x54, 0x15, 0x35, 0x06  # BPF: LD|ABS, ALU|AND, JMP|JEQ, JMP|JGE, RET
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's seccomp_data
_ALLOW: Instruction = (_GIVE, 0, 0, 0x7FFF0000)
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_SOCKET_KIND = 0xF  # the other bits of a socket's type are flags
_SIZES_OF_SOCKETS = (7, 8)  # SO_SNDBUF, SO_RCVBUF
_SIZE_OF_PIPE = 1031  # F_SETPIPE_SZ
_TCP_OR_UDP = (0, socket.IPPROTO_TCP, socket.IPPROTO_UDP)
_NETLINK, _NETLINK_ROUTE = 16, 0  # the C library asks it for addresses and interfaces
_FIRST_PROCESS = 1  # pid of the jail's first process, which starts and ends all ranks


def program(has_unix_sockets: bool = True, has_gpus: bool = False, machine: str = "") -> list[Instruction]:
    """Assemble the filter for a machine, by default this one.

    Without UNIX sockets, socket pairs still work. CUDA's driver needs memfds.

    Raises:
        OSError: there is no list of calls for such a machine.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no list of system calls for {machine}: use x86_64 or aarch64")
    column, architecture = _MACHINES[machine]
    allowed, unknown = numbers(_ALLOWED, column), numbers(_UNKNOWN, column)
    if has_gpus:
        allowed["memfd_create"] = unknown.pop("memfd_create")
    conditions = _conditions(has_unix_sockets)
    checked = [one for name, number in numbers(_CONDITIONAL, column).items() for one in _when(number, conditions[name])]
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        _fail(),
        (_LOAD, 0, 0, _NUMBER),
        *checked,
        *(one for number in unknown.values() for one in _when(number, [_fail(errno.ENOSYS)])),
        *(one for first, last in _ranges(allowed.values()) for one in _if_in(first, last)),
        (_AT_LEAST, 1, 0, _NEWEST + 1),  # this also rejects the calls of x32, x86's other interface
        _fail(),
        _fail(errno.ENOSYS),
    ]


def numbers(names: str, column: int) -> dict[str, int]:
    """The number of each call in a list, for the machine in that column."""
    words = [word for line in names.splitlines() if not line.startswith("#") for word in line.split()]
    rows = zip(words[::3], words[column::3], strict=True)
    return {name: int(number) for name, number in rows if number != "-"}


def _conditions(has_unix_sockets: bool) -> dict[str, list[Instruction]]:
    """The instructions that give the verdict for each call that is allowed only with some arguments."""
    not_the_first = [*_refuse_if(0, _FIRST_PROCESS), _ALLOW]
    return {
        "clone": [*_require(0, [0], _NAMESPACES), _ALLOW],
        "fcntl": [*_refuse_if(1, _SIZE_OF_PIPE), _ALLOW],
        "prlimit64": not_the_first,
        "sched_setaffinity": not_the_first,
        "sched_setattr": not_the_first,
        "sched_setparam": not_the_first,
        "sched_setscheduler": not_the_first,
        "setpriority": [*_require(0, [0]), *_refuse_if(1, _FIRST_PROCESS), _ALLOW],
        "setsockopt": _of_options(),
        "socket": _of_sockets(has_unix_sockets),
        "socketpair": [*_require(0, [socket.AF_UNIX], otherwise=errno.EAFNOSUPPORT), _ALLOW],
    }


def _of_sockets(has_unix_sockets: bool) -> list[Instruction]:
    over_ip = [
        *_require(1, [socket.SOCK_STREAM, socket.SOCK_DGRAM], _SOCKET_KIND, errno.EPROTONOSUPPORT),
        *_require(2, _TCP_OR_UDP, otherwise=errno.EPROTONOSUPPORT),
        _ALLOW,
    ]
    return [
        (_LOAD, 0, 0, _ARGUMENTS),
        *(_when(socket.AF_UNIX, [_ALLOW]) if has_unix_sockets else ()),
        *_when(socket.AF_INET, over_ip),
        *_when(socket.AF_INET6, over_ip),
        *_when(_NETLINK, [*_require(2, [_NETLINK_ROUTE], otherwise=errno.EPROTONOSUPPORT), _ALLOW]),
        _fail(errno.EAFNOSUPPORT),
    ]


def _of_options() -> list[Instruction]:
    """The verdict on a socket option: setting a buffer size succeeds without effect, because libraries may try it."""
    sizes = [one for option in _SIZES_OF_SOCKETS for one in _when(option, [_fail(0)])]
    of_any = [(_LOAD, 0, 0, _ARGUMENTS + 16), *sizes, _ALLOW]
    return [(_LOAD, 0, 0, _ARGUMENTS + 8), *_when(socket.SOL_SOCKET, of_any), _ALLOW]


# parts of programs; a verdict is an instruction that ends the program


def _fail(number: int = errno.EPERM) -> Instruction:
    return _GIVE, 0, 0, 0x00050000 | number


def _when(value: int, verdict: Sequence[Instruction]) -> list[Instruction]:
    """Give the verdict if the value loaded last equals this one."""
    return [(_EQUAL, 0, len(verdict), value), *verdict]


def _if_in(first: int, last: int) -> list[Instruction]:
    """Allow the value loaded last if it lies in this range, bounds included."""
    return [(_AT_LEAST, 0, 2, first), (_AT_LEAST, 1, 0, last + 1), _ALLOW]


def _require(
    argument: int, values: Sequence[int], mask: int = 0xFFFFFFFF, otherwise: int = errno.EPERM
) -> list[Instruction]:
    """Continue if a masked argument is one of these values; fail otherwise."""
    tests = [(_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_AND, 0, 0, mask), *tests, _fail(otherwise)]


def _refuse_if(argument: int, value: int) -> list[Instruction]:
    """Fail if an argument is this value; continue otherwise."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_EQUAL, 0, 1, value), _fail()]


def _ranges(values: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each run of consecutive numbers, in order."""
    found: list[tuple[int, int]] = []
    for value in sorted(values):
        if found and value == found[-1][1] + 1:
            found[-1] = found[-1][0], value
        else:
            found.append((value, value))
    return found
