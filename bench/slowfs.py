"""A directory behind a link of limited bandwidth, which all who use it share.

    slowfs.py BACKING MOUNTPOINT BYTES_PER_SECOND

A file system in user space (FUSE; libfuse 3 and the Python package mfusepy) that passes everything
on to BACKING. Every byte that is written or read crosses one link, first come, first served: a
request waits until those before it are through. So writers that write at the same time slow each
other, as on a file server. Nothing is cached above the link (direct I/O), so what is read back
crosses it too. Names and attributes cost nothing. It runs until it is told to end (SIGTERM), and
unmounts itself.
"""

import errno
import os
import sys
import threading
import time

import mfusepy


class Link:
    """One link: what is asked for is carried in order, at so many bytes a second."""

    def __init__(self, rate):
        self.rate = rate
        self.lock = threading.Lock()
        self.free = 0.0

    def carry(self, size):
        """Returns when so many bytes are through."""
        with self.lock:
            now = time.monotonic()
            self.free = max(now, self.free) + size / self.rate
            wait = self.free - now
        time.sleep(wait)


class Slow(mfusepy.Operations):
    """BACKING, with what is read and written on the link."""

    use_ns = True

    def __init__(self, backing, rate):
        self.backing = os.path.realpath(backing)
        self.link_to_all = Link(rate)
        self.unmounted = False

    def init_with_config(self, conn_info, config_3):
        """Nothing is cached by the kernel; open files are known by their handles."""
        config_3.direct_io = 1
        config_3.hard_remove = 1
        config_3.attr_timeout = config_3.entry_timeout = 0.0

    def destroy(self, path):
        self.unmounted = True

    def there(self, path):
        """The path in BACKING."""
        return self.backing + path

    # What crosses the link.

    def read(self, path, size, offset, fh):
        data = os.pread(fh, size, offset)
        self.link_to_all.carry(len(data))
        return data

    def write(self, path, data, offset, fh):
        self.link_to_all.carry(len(data))
        return os.pwrite(fh, data, offset)

    # What does not.

    def access(self, path, amode):
        if not os.access(self.there(path), amode):
            raise mfusepy.FuseOSError(errno.EACCES)
        return 0

    def chmod(self, path, mode):
        os.chmod(self.there(path), mode)
        return 0

    def chown(self, path, uid, gid):
        os.chown(self.there(path), uid, gid, follow_symlinks=False)
        return 0

    def create(self, path, mode, fi=None):
        return os.open(self.there(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def fsync(self, path, datasync, fh):
        (os.fdatasync if datasync else os.fsync)(fh)
        return 0

    def fsyncdir(self, path, datasync, fh):
        fd = os.open(self.there(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        return 0

    def getattr(self, path, fh=None):
        found = os.lstat(self.there(path)) if fh is None else os.fstat(fh)
        names = ("mode", "nlink", "uid", "gid", "size", "blocks")
        times = {
            f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")
        }
        return {f"st_{name}": getattr(found, f"st_{name}") for name in names} | times

    def link(self, target, source):
        os.link(self.there(source), self.there(target))
        return 0

    def mkdir(self, path, mode):
        os.mkdir(self.there(path), mode)
        return 0

    def open(self, path, flags):
        # The kernel says where each write goes, and nothing is cached here anyway.
        return os.open(self.there(path), flags & ~(os.O_APPEND | os.O_DIRECT))

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(self.there(path))]

    def readlink(self, path):
        return os.readlink(self.there(path))

    def release(self, path, fh):
        os.close(fh)
        return 0

    def rename(self, old, new):
        os.rename(self.there(old), self.there(new))
        return 0

    def rmdir(self, path):
        os.rmdir(self.there(path))
        return 0

    def statfs(self, path):
        found = os.statvfs(self.there(path))
        names = (
            "bsize",
            "frsize",
            "blocks",
            "bfree",
            "bavail",
            "files",
            "ffree",
            "favail",
            "namemax",
        )
        return {f"f_{name}": getattr(found, f"f_{name}") for name in names}

    def symlink(self, target, source):
        os.symlink(source, self.there(target))
        return 0

    def truncate(self, path, length, fh=None):
        os.truncate(self.there(path) if fh is None else fh, length)
        return 0

    def unlink(self, path):
        os.unlink(self.there(path))
        return 0

    def utimens(self, path, times=None):
        os.utime(self.there(path), ns=times, follow_symlinks=False)
        return 0


def main():
    backing, mountpoint, rate = sys.argv[1:]
    options = {"foreground": True, "fsname": "slowfs", "default_permissions": True}
    slow = Slow(backing, float(rate))
    try:
        mfusepy.FUSE(slow, mountpoint, **options)
    except RuntimeError:
        # libfuse says so, too, where a signal has ended it.
        if not slow.unmounted:
            raise


if __name__ == "__main__":
    main()
