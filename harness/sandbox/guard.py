"""Runs one program that nobody has read: with limits, without files to write, processes, signals or sockets.

Arguments: `namespaces` or `limits`, the line that says that all of that holds, the file of the program. Only what the
program itself can do is refused here; the wall clock and the size of its output are watched from outside.
"""

import sys

sys.path = [place for place in sys.path if place]  # The working folder is no place for modules.

import os
import resource

MIB = 1 << 20
CPU_SECS = 10
LIMITS = {
    "RLIMIT_AS": 1024 * MIB,
    "RLIMIT_CORE": 0,
    "RLIMIT_CPU": CPU_SECS,
    "RLIMIT_FSIZE": MIB,
    "RLIMIT_NOFILE": 64,
    # Of a user, not of a program; root is exempt, so the hook below refuses processes too.
    "RLIMIT_NPROC": 32,
}

# Events of https://docs.python.org/3/library/audit_events.html. A hook cannot be taken away again.
REFUSED = frozenset(
    """
    os.chflags os.chmod os.chown os.exec os.fork os.forkpty os.kill os.killpg os.link os.mkdir os.posix_spawn os.remove
    os.removexattr os.rename os.rmdir os.setxattr os.spawn os.symlink os.system os.truncate os.utime pty.spawn
    resource.prlimit resource.setrlimit sqlite3.connect subprocess.Popen
    """.split()
)
REFUSED_GROUPS = ("ctypes.", "shutil.", "socket.", "tempfile.")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def hook(event, args):
    if event == "open":
        is_refused = args[2] & WRITES and args[0] != os.devnull
    else:
        is_refused = event in REFUSED or event.startswith(REFUSED_GROUPS)
    if is_refused:
        raise PermissionError(event + " is refused to answers")


def refuse(*_args, **_more):
    raise PermissionError("is refused to answers")


def take_away():
    """What makes processes and files and raises no event that the hook could see."""
    import _posixsubprocess
    import posix

    _posixsubprocess.fork_exec = refuse
    for module in (os, posix):
        module.mkfifo = module.mknod = refuse


def limit():
    for name, value in LIMITS.items():
        try:
            resource.setrlimit(getattr(resource, name), (value, value))
        except (AttributeError, OSError, ValueError):
            if sys.platform == "linux":
                raise


class Linux:
    """What the system can do and Python has no name for."""

    def __init__(self):
        import ctypes

        self.ctypes = ctypes
        self.libc = ctypes.CDLL(None, use_errno=True)

    def check(self, what, code):
        if code != 0:
            raise OSError(self.ctypes.get_errno(), what + " failed")

    def die_with_parent(self):
        PR_SET_PDEATHSIG, SIGKILL = 1, 9
        self.check("prctl", self.libc.prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0))

    def separate(self):
        """New user, mount, network, process, IPC and host name namespaces; every mount becomes read-only."""
        NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
            0x20000,
            0x4000000,
            0x8000000,
            0x10000000,
            0x20000000,
            0x40000000,
        )
        user, group = os.geteuid(), os.getegid()
        self.check("unshare", self.libc.unshare(NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET))
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open("/proc/self/" + name, "w") as file:
                file.write(text)
        MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, RDONLY, PRIVATE = 442, -100, 0x8000, 1, 1 << 18
        attributes = (self.ctypes.c_uint64 * 4)(RDONLY, 0, PRIVATE, 0)
        code = self.libc.syscall(
            self.ctypes.c_long(MOUNT_SETATTR), AT_FDCWD, b"/", AT_RECURSIVE, attributes, self.ctypes.c_size_t(32)
        )
        self.check("mount_setattr", code)

    def drop_capabilities(self):
        VERSION_3, PR_SET_NO_NEW_PRIVS = 0x20080522, 38
        self.check("prctl", self.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        header, none = (self.ctypes.c_uint32 * 2)(VERSION_3, 0), (self.ctypes.c_uint32 * 6)()
        self.check("capset", self.libc.capset(header, none))


def enter_namespaces():
    """Goes on as the first process of the namespaces, with which everything in them ends."""
    linux = Linux()
    linux.die_with_parent()
    linux.separate()
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)
    linux.die_with_parent()
    linux.drop_capabilities()


def main():
    level, ready, program = sys.argv[1:]
    with open(program, encoding="utf-8") as file:
        source = file.read()
    if level == "namespaces":
        enter_namespaces()
    elif sys.platform == "linux":
        try:
            Linux().die_with_parent()
        except ImportError:
            pass  # A Python without ctypes; a run that is killed may leave a program that sleeps.
    take_away()
    limit()
    sys.argv = ["answer"]
    sys.addaudithook(hook)
    os.write(1, (ready + "\n").encode())
    exec(compile(source, "program", "exec"), {"__name__": "program"})


main()
