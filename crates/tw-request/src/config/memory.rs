//! Memory that HTTP uses for content of later requests, in each loop or in the whole process: settings of `main`.

use std::time::Duration;

use tw_conf::{Args, ConfError, Cx, Directive, MAIN, Node, Setting, record};

/// Sizes and lifetimes of what stays in memory between requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// `hot_files_size`: bytes of small files each loop keeps.
    pub hot_files_size: usize,
    /// `open_files_inactive`: how long a file stays open that nobody asks for, without `open_file_cache`.
    pub open_files_inactive: Duration,
    /// `hot_lock_size`: bytes of files that are locked in memory to be sent by the kernel, in the whole process.
    pub hot_lock_size: u64,
    /// `compression_memory`: bytes of encoders that wait for clients, in the whole process.
    pub compression_memory: u64,
}

/// Memory settings as written.
#[derive(Default)]
pub struct Raw {
    hot_files_size: Setting<usize>,
    open_files_inactive: Setting<Duration>,
    hot_lock_size: Setting<u64>,
    compression_memory: Setting<u64>,
}

/// Their records.
pub const DIRECTIVES: &[Directive<Raw>] = &[
    record::size("hot_files_size", MAIN)
        .default("32m")
        .since("Tailwater 0.1")
        .doc("Memory each loop may use for the contents of small files that are asked for often; 0 turns it off.")
        .set(|raw, node, _| raw.hot_files_size.set_size(node)),
    record::time("open_files_inactive", MAIN)
        .default("20s")
        .since("Tailwater 0.2")
        .doc(
            "Without open_file_cache a file stays open until nobody has asked for it for so long, or it was removed, or the \
             configuration or the logs are opened anew.",
        )
        .set(|raw, node, _| raw.open_files_inactive.set_msec(node)),
    record::new("hot_lock_size", "size | off", MAIN, Args::exact(1))
        .default("64m")
        .since("Tailwater 0.2")
        .doc(
            "Memory for files that are asked for often where sendfile is on, in the whole process: they are locked in it, so that \
             event loops can have the kernel send them without ever waiting for a disk.",
        )
        .set(|raw, node, _| {
            raw.hot_lock_size.set_with(node, |node| if node.arg(0)?.is("off") { Ok(0) } else { node.offset() })
        }),
    record::size("compression_memory", MAIN)
        .default("128m")
        .since("Tailwater 0.2")
        .doc(
            "Memory that gzip, brotli and zstd may use for responses whose clients have not yet taken them all, in the whole \
             process; beyond it, and beyond half of what the cgroup or the machine has left, a response gets the next coding that is \
             configured and takes less, or none.",
        )
        .set(|raw, node, _| raw.compression_memory.set_size(node)),
];

impl Memory {
    /// From written to used.
    pub fn resolve(raw: Raw) -> Self {
        Self {
            hot_files_size: raw.hot_files_size.or(None, 32 << 20),
            open_files_inactive: raw.open_files_inactive.or(None, Duration::from_secs(20)),
            hot_lock_size: raw.hot_lock_size.or(None, 64 << 20),
            compression_memory: raw.compression_memory.or(None, 128 << 20),
        }
    }
}

/// Reads a directive of `main`, if it is one of these.
pub fn set(raw: &mut Raw, node: &Node, cx: &mut Cx<'_>) -> Option<Result<(), ConfError>> {
    let name = node.name.as_str()?;
    let directive = DIRECTIVES.iter().find(|directive| directive.name == name)?;
    let checked = tw_conf::check(node, &directive.info(), cx.context);
    Some(checked.and_then(|()| (directive.set)(raw, node, cx)))
}
