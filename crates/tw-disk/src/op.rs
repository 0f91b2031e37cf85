//! The operations of the door, by name: for errors, counters and the log.

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $call:literal),+ $(,)?) => {
        /// One kind of disk operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Op { $($(#[$doc])* $name),+ }

        impl Op {
            /// Every operation, in the order of [`Op::index`].
            pub const ALL: &'static [Op] = &[$(Op::$name),+];

            /// Name of the operation, unique among all: `Open`.
            pub const fn name(self) -> &'static str {
                match self { $(Op::$name => stringify!($name)),+ }
            }

            /// The name nginx's error log uses for the failed call, for example `open()`.
            pub const fn call(self) -> &'static str {
                match self { $(Op::$name => $call),+ }
            }
        }
    };
}

ops! {
    /// Opening an existing file.
    Open = "open()",
    /// Metadata by path.
    Stat = "stat()",
    /// Metadata by path, of a symbolic link itself.
    StatLink = "lstat()",
    /// Metadata of an open file.
    Fstat = "fstat()",
    /// Reading a range.
    Read = "pread()",
    /// From file to socket inside the kernel.
    Sendfile = "sendfile()",
    /// Locking a file in memory.
    Lock = "mlock()",
    /// Writing a range.
    Write = "pwrite()",
    /// Creating a file.
    Create = "open()",
    /// Creating a directory.
    Mkdir = "mkdir()",
    /// Renaming.
    Rename = "rename()",
    /// A second name for a file.
    Link = "link()",
    /// Removing a file.
    Unlink = "unlink()",
    /// Removing a directory.
    Rmdir = "rmdir()",
    /// Flushing to stable storage.
    Fsync = "fsync()",
    /// Having the disk take what was written, as it comes.
    WriteBack = "sync_file_range()",
    /// Setting times.
    SetTimes = "utimes()",
    /// Setting permissions.
    SetMode = "chmod()",
    /// Setting the length.
    Truncate = "ftruncate()",
    /// Reading a directory.
    List = "opendir()",
    /// Free space of a file system.
    Space = "statvfs()",
    /// The target of a symbolic link.
    Readlink = "readlink()",
    /// A path without symbolic links.
    Realpath = "realpath()",
    /// Copying a whole file.
    Copy = "copy()",
    /// Closing where it may wait.
    Close = "close()",
    /// A closure of [`Pool::run`](crate::Pool::run).
    Run = "run()",
}

impl Op {
    /// Number of operations.
    pub const COUNT: usize = Self::ALL.len();

    /// Position in [`Op::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
    /// Returns true if the operation follows a symbolic link that has the last name of its path.
    pub(crate) const fn follows_links(self) -> bool {
        !matches!(
            self,
            Self::StatLink
                | Self::Unlink
                | Self::Rmdir
                | Self::Mkdir
                | Self::Rename
                | Self::Link
                | Self::Readlink
        )
    }
}
